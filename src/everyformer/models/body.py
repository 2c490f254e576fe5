"""Bodies of agents: a member's layers over vectors, whose rows hold one episode after the other.

    y, state = body(x, state, reset)                    x (B, L, width), reset (B, L) bool

``reset`` is True at the first token of an episode, anywhere in a segment and in any rows ("done at
t" is a reset at t + 1). Tokens see neither what the state holds of older episodes nor those of the
same segment, positions count from the episode's first token, and the state that comes out holds no
older episode. So a rollout equals its episodes one by one, cut into segments anywhere, as far as a
member's streams do.

Members whose mixers take documents with a state (those with a memory) read a segment as packed
documents (`Mask.documents`). Of the others every episode of a segment becomes a row of its own,
that starts from the row's state or from an empty one (`State.reset`, `State.reorder`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import StackOutput
from everyformer.core.state import StackState
from everyformer.engines.rows import repack, unpack
from everyformer.engines.softmax.cache import freed
from everyformer.engines.softmax.visibility import surely
from everyformer.family import info, list_members
from everyformer.genes.config import DEFAULT_LENGTH, ModelConfig
from everyformer.models.base import Model
from everyformer.models.build import configure_layers


class Body(nn.Module):
    """The layers of a causal model, without embeddings and heads.

    ``width`` channels go in and ``out_width`` come out. What members drop out by themselves stays:
    where two passes must agree in training, build it with ``dropout=0.0``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Model(config)
        self.model.start_weights([])
        self.width, self.out_width = config.width, self.model.stack.out_width

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> StackState:
        """The state before the first token of so many rows."""
        return self.model.init_state(batch_size, device=device, dtype=dtype)

    def forward(
        self, x: Tensor, state: StackState | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """The next L tokens of every row.

        Args:
            x: (B, L, width), floating.
            state: what came out behind the tokens before; None: there are none. Gradients go
                through it, but for memories: `State.detach` cuts it.
            reset: (B, L) bool, where an episode begins; None: nowhere.

        Returns:
            (B, L, out_width), and the state behind these tokens.

        Raises:
            ShapeError: tensors that do not go together.
        """
        if x.dim() != 3 or x.shape[-1] != self.width or not x.is_floating_point():
            raise ShapeError(
                f"x must be (batch, length, {self.width}) floats, not {tuple(x.shape)} "
                f"{str(x.dtype).removeprefix('torch.')}"
            )
        state = self.init_state(len(x), device=x.device) if state is None else state
        out = through_episodes(self.model, x, state, reset)
        assert out.state is not None
        return out.y, out.state


def create_body(
    name: str,
    *,
    width: int,
    layers: int,
    heads: int,
    max_length: int = DEFAULT_LENGTH,
    **options: Any,
) -> Body:
    """Build a member's layers as the body of an agent.

    Args:
        name: a member that streams (`everyformer list --streaming`).
        max_length: longest episode, needed by members with a table over positions.
        options: as of `create_model`.

    Raises:
        UnsupportedError: the member has no exact stream, or none with these options.
        UnknownNameError, ConfigError, GeneError: with the nearest name, or both sides named.
    """
    rows = {member.name: member for member in list_members()}
    streams = info(name).streaming
    if streams is not True:
        able = ", ".join(row.name for row in rows.values() if row.can("streaming"))
        raise UnsupportedError(
            f"member '{name}' cannot be an agent's body, which reads step by step: {streams}. "
            f"Members that can: {able}"
        )
    sizes = {"width": width, "layers": layers, "heads": heads}
    # there is no output layer that could be tied
    config = configure_layers(name, True, max_length, **{"tie": False, **sizes, **options})
    body = Body(config)
    require_streams(body.model)
    return body


def require_streams(model: Model) -> None:
    """Refuse layers that cannot read step by step.

    Raises:
        UnsupportedError: one of them has no exact stream, and why.
    """
    model.init_state(1)
    rows = {member.name: member for member in list_members()}
    for part in model.modules():
        row = rows.get(part.name) if isinstance(part, Mixer) else None
        if row is not None and "causality" in row.exempt:
            raise UnsupportedError(
                f"mixer '{row.name}' cannot be in an agent's body, which reads step by step: "
                f"{row.exempt['causality']}"
            )


def through_episodes(
    model: Model,
    x: Tensor,
    state: StackState,
    reset: Tensor | None,
) -> StackOutput:
    """Positions and layers of ``model`` over x (B, L, width); see `Body.forward`."""
    if reset is None:
        return _through(model, x, state, None)
    if reset.shape != x.shape[:2] or reset.dtype != torch.bool:
        raise ShapeError(
            f"reset is {tuple(reset.shape)} {str(reset.dtype).removeprefix('torch.')}, but the "
            f"tokens are {tuple(x.shape[:2])}: give one bool per token, True where an episode "
            "begins"
        )
    packs = all(mixer.packs_with_state for mixer in model.stack.mixers)
    first = reset[:, 0]
    if not surely(~first):
        state = state.reset(first)
        state = state if packs else freed(state)
    if surely(~reset[:, 1:]):
        return _through(model, x, state, None)
    later = F.pad(reset[:, 1:], (1, 0))
    episodes = later.long().cumsum(1)
    if packs:
        return _through(model, x, state, Mask(documents=episodes))
    rows = unpack(x, episodes)
    initial = freed(rows.initial(state, episodes))
    out = _through(model, rows.x, initial, Mask(padding_mask=rows.padding_mask))
    assert out.state is not None
    after = out.state.reorder(rows.row[:, -1])
    return out._replace(y=repack(out.y, rows), state=after)


def _through(model: Model, x: Tensor, state: StackState, mask: Mask | None) -> StackOutput:
    x = model.add_positions(x, mask, state)
    out: StackOutput = model.stack(x, mask=mask, state=state)
    return out
