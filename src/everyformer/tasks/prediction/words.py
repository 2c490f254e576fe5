"""`Words`: tokens as they are shown to people, alone, among the likeliest, and as texts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from everyformer.data.tokenizers.base import Tokenizer
from everyformer.tasks.prediction.records import Candidate


class Words:
    """Words for the tokens of a tokenizer, or numbers where there is none.

    Args:
        hidden: the id of hidden tokens, which are shown as marks; None where nothing is hidden.
    """

    def __init__(self, tokenizer: Tokenizer | None, hidden: int | None) -> None:
        self.tokenizer, self.hidden = tokenizer, hidden

    def likeliest(self, before: Sequence[int], p: Tensor, top: int) -> tuple[Candidate, ...]:
        """The ``top`` of probabilities ``p`` (V,) of the token that follows those ``before``."""
        return tuple(Candidate(self.after(before, id_), value, id_) for value, id_ in best(p, top))

    def after(self, before: Sequence[int], token: int) -> str:
        """The text of a token after others; a part of a character by its number."""
        tokenizer = self.tokenizer
        if tokenizer is None or token >= tokenizer.vocabulary:
            return str(token) if tokenizer is None else "[MASK]"
        text = tokenizer.decode_after(before[-16:], [token])
        if text and "\ufffd" not in text:
            return text
        return f"<0x{token:02X}>" if tokenizer.vocabulary == 256 else f"<{token}>"

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as text, hidden ones as marks."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        parts: list[str] = []
        for hidden, run in itertools.groupby(ids, lambda token: token == self.hidden):
            tokens = list(run)
            parts += ["[MASK]"] * len(tokens) if hidden else [self.tokenizer.decode(tokens)]
        return "".join(parts)


def best(p: Tensor, top: int) -> list[tuple[float, int]]:
    """The ``top`` probabilities with their ids, the greatest first."""
    result = p.topk(min(top, len(p)))
    return list(zip(result.values.tolist(), result.indices.tolist(), strict=True))
