"""A SPALM that looks neighbours up as it reads, token by token or a text at once.

A token's context is read by the frozen model in the same windows of the text as its stores were, so
what is found does not depend on how a text is cut into calls. The state keeps the last tokens for
that; a new token costs one reading of its window, up to ``context`` tokens, by the frozen model.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState, State, state
from everyformer.models.knn_lm import ReadingModel
from everyformer.models.language import LanguageModel
from everyformer.stores.indexing import Indexing, new_keys
from everyformer.stores.store.index import Index
from everyformer.stores.table import first_new, window_of
from everyformer.stores.texts import Window


@state
class Recent(State):
    """The tokens that a window may still reach."""

    num_tokens: Tensor
    tokens: Tensor
    """(B, context - 1) int64, the newest last; what was not read yet is 0"""


class SpalmLanguageModel(ReadingModel):
    """Called as `LanguageModel` is; in training it is the model alone.

    Args:
        frozen: by whose states contexts are compared. index: over the store of its keys.
        how: the windows and the tap of that store. k: neighbours of a token.
    """

    def __init__(
        self, model: LanguageModel, frozen: LanguageModel, index: Index, how: Indexing, k: int
    ) -> None:
        super().__init__(model)
        self.frozen, self.index, self.how = frozen, index, how
        self.k = min(k, len(index.store))

    def init_state(self, batch_size: int, **like: Any) -> StackState:
        """The state before the first token: the model's own, and the tokens read last."""
        alone = self.model.init_state(batch_size, **like)
        tokens = alone.num_tokens.new_zeros(batch_size, self.how.context - 1)
        return StackState(alone.num_tokens, (alone, Recent(alone.num_tokens, tokens)))

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        neighbours: Tensor | None = None,
        taps: Sequence[str] = (),
        last: int | None = None,
    ) -> ModelOutput:
        """Output as of `LanguageModel.forward`; ``neighbours`` are looked up if None."""
        options: dict[str, Any] = {"targets": targets, "mask": mask, "taps": taps, "last": last}
        recent: Any = None
        if state is not None:
            options["state"], recent = state.layers
        if self.training:
            alone: ModelOutput = self.model(inputs, neighbours=neighbours, **options)
            return alone
        padding_mask = None if mask is None else mask.padding_mask
        real = torch.ones_like(inputs, dtype=torch.bool) if padding_mask is None else padding_mask
        if neighbours is None:
            neighbours = self._look_up(inputs, real, recent, last)
        out: ModelOutput = self.model(inputs, neighbours=neighbours, **options)
        if recent is None or out.state is None:
            return out
        rows = zip(recent.tokens, inputs, real, strict=True)
        tokens = [torch.cat((old, new[real_]))[len(new[real_]) :] for old, new, real_ in rows]
        after = Recent(out.state.num_tokens, torch.stack(tokens))
        return out._replace(state=StackState(out.state.num_tokens, (out.state, after)))

    def neighbours_of(self, inputs: Tensor) -> Tensor:
        """(B, L, k) tokens for texts (B, L) from their start, -1 where there are fewer."""
        return self._look_up(inputs, torch.ones_like(inputs, dtype=torch.bool), None, None)

    def _look_up(
        self, inputs: Tensor, real: Tensor, recent: Recent | None, last: int | None
    ) -> Tensor:
        """(B, L, k) of the real tokens, or of the ``last`` of them in each row; elsewhere -1."""
        batch, where = [], []
        for row, (tokens, real_tokens) in enumerate(zip(inputs.cpu(), real.cpu(), strict=True)):
            num_tokens = 0 if recent is None else int(recent.num_tokens[row])
            old = tokens[:0] if recent is None else recent.tokens[row].cpu()
            before = min(num_tokens, len(old))
            history = torch.cat((old[len(old) - before :], tokens[real_tokens])).numpy()
            places = real_tokens.nonzero().squeeze(1)
            start = 0 if last is None else max(0, len(places) - last)
            for window, first, end in self._windows(num_tokens + start, num_tokens + len(places)):
                shift = num_tokens - before
                batch.append(Window(history, window - shift, first - window, end - shift))
                where += [(row, int(places[p - num_tokens])) for p in range(first, end)]
        neighbours = torch.full((*inputs.shape, self.k), -1, dtype=torch.long)
        if not where:
            return neighbours.to(inputs.device)
        keys = new_keys(self.frozen, batch, self.how.tap)
        values = self.index.store.following(self.index.search(keys, self.k).rows)
        r, p = torch.tensor(where).T
        neighbours[r, p] = torch.from_numpy(values).long()
        return neighbours.to(inputs.device)

    def _windows(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Windows of the positions from ``first`` up to ``end``: where each begins, and
        which of them are new in it."""
        context, stride, windows = self.how.context, self.how.stride, []
        while first < end:
            number = int(window_of(first, context, stride))
            stop = min(end, first_new(number + 1, context, stride))
            windows.append((number * stride, first, stop))
            first = stop
        return windows
