"""torch's own layers: attention (whose masks are False at what is real) and recurrent networks."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.inputs import Inputs
from sequence_laws.libraries import Library, written
from sequence_laws.subject import Subject

CALLS: dict[type[nn.Module], tuple[str, str, str]] = {
    nn.TransformerEncoder: ("{x}", "mask", "src_key_padding_mask"),
    nn.TransformerEncoderLayer: ("{x}", "src_mask", "src_key_padding_mask"),
    nn.TransformerDecoder: ("{x}, {memory}", "tgt_mask", "tgt_key_padding_mask"),
    nn.TransformerDecoderLayer: ("{x}, {memory}", "tgt_mask", "tgt_key_padding_mask"),
    nn.Transformer: ("{memory}, {x}", "tgt_mask", "tgt_key_padding_mask"),
    nn.MultiheadAttention: ("{x}, {x}, {x}", "attn_mask", "key_padding_mask"),
}
"""layer -> what it is given, and its words for a mask of what may be seen and for padding"""
MEMORY = 5
"""inputs of what a decoder attends to"""


class Encoder(Subject):
    """torch's attention, and layers with it; ``causal`` gives them torch's causal mask, and a
    decoder has the same memory in each row."""

    masks = ("right", "left", "holes")

    @property
    def rows_first(self) -> bool:
        """True if inputs are (B, L, d)."""
        return any(getattr(m, "batch_first", False) for m in self.model.modules())

    @property
    def _called(self) -> tuple[str, str, str]:
        return next(words for kind, words in CALLS.items() if isinstance(self.model, kind))

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """One pass; a row of nothing but padding is read as it is."""
        order, future, padding = self._called
        mask = None
        if self.causal:
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        given = {"x": x}
        if "memory" in order:
            values = torch.linspace(-1, 1, MEMORY * x.shape[2]).to(x)
            given["memory"] = values.view(1, MEMORY, -1).expand(len(x), -1, -1)
        if not self.rows_first:
            given = {word: value.transpose(0, 1) for word, value in given.items()}
        words = {future: mask, padding: None if padding_mask is None else ~padding_mask}
        result = model(*(given[word[1:-1]] for word in order.split(", ")), **words)
        y: Tensor = result[0] if self.place else result
        return y if self.rows_first else y.transpose(0, 1)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        order, future, padding = self._called
        turn = "" if self.rows_first else ".transpose(0, 1)"
        width = self.inputs.width
        memory = (
            f"torch.linspace(-1, 1, {MEMORY * (width or 1)}).to({x})"
            f".view(1, {MEMORY}, -1).expand(len({x}), -1, -1)"
        )
        given = order.format(x=f"{x}{turn}", memory=f"{memory}{turn}")
        seen = f"torch.ones({x}.shape[1], {x}.shape[1]).bool().triu(1)"
        mask = f", {future}={seen}" if self.causal else ""
        padded = "" if padding_mask is None else f", {padding}=~{padding_mask}"
        return f"model({given}{mask}{padded}){self.place}{turn}"


class Recurrent(Subject):
    """`nn.RNN`, `nn.GRU`, `nn.LSTM`, whose cache is their state."""

    streams = True

    def call(self, model: Any, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """One pass from a state of zeros."""
        return self.feed(model, x, None)[0]

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        turn = "" if self.model.batch_first else ".transpose(0, 1)"
        return f"model({x}{turn})[0]{turn}"

    def feed(self, model: Any, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Outputs, and the state behind them."""
        y, state = model(x if model.batch_first else x.transpose(0, 1), cache)
        return (y if model.batch_first else y.transpose(0, 1)), state

    def feed_code(self) -> list[str]:
        """The Python of it."""
        if self.model.batch_first:
            return ["feed = model"]
        return [
            "def feed(x, cache):",
            "    y, cache = model(x.transpose(0, 1), cache)",
            "    return y.transpose(0, 1), cache",
        ]

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """The state with its rows (its second dimension) in another order."""
        if isinstance(cache, tuple):
            return tuple(part[:, rows] for part in cache)
        return cache[:, rows]

    def rows_code(self, cache: Any) -> list[str]:
        """The Python of it."""
        if isinstance(cache, tuple):
            return ["cache = tuple(part[:, rows] for part in cache)"]
        return ["cache = cache[:, rows]"]


def encoder(model: nn.Module, name: str, **known: Any) -> Subject | None:
    """The subject of attention or layers with it; both ways unless it is given as causal."""
    if not isinstance(model, tuple(CALLS)):
        return None
    width = next(m for m in model.modules() if isinstance(m, nn.MultiheadAttention)).embed_dim
    known["causal"] = bool(known.get("causal"))
    place = "[0]" if isinstance(model, nn.MultiheadAttention) else ""
    return Encoder(model, name, Inputs(width=width), place=place, **known)


def recurrent(model: nn.Module, name: str, **known: Any) -> Subject | None:
    """The subject of a recurrent network; causal unless it is bidirectional, which is no claim."""
    if not isinstance(model, nn.RNNBase):
        return None
    known["causal"] = not model.bidirectional or bool(known.get("causal"))
    return Recurrent(model, name, Inputs(width=model.input_size), **known)


LAYER = "16, 2, 32, batch_first=True"
MODELS = {
    "RNN": "nn.RNN(16, 16, 2, batch_first=True)",
    "GRU": "nn.GRU(16, 16, 2, batch_first=True)",
    "LSTM": "nn.LSTM(16, 16, 2, batch_first=True)",
    "LSTM projected": "nn.LSTM(16, 16, 2, batch_first=True, proj_size=8)",
    "GRU both ways": "nn.GRU(16, 16, batch_first=True, bidirectional=True)",
    "GRU time first": "nn.GRU(16, 16)",
    "MultiheadAttention": "nn.MultiheadAttention(16, 2, batch_first=True)",
    "MultiheadAttention causal": "nn.MultiheadAttention(16, 2, batch_first=True)",
    "TransformerEncoder": f"nn.TransformerEncoder(nn.TransformerEncoderLayer({LAYER}), 2)",
    "TransformerEncoder causal": f"nn.TransformerEncoder(nn.TransformerEncoderLayer({LAYER}), 2)",
    "TransformerEncoderLayer norm first": f"nn.TransformerEncoderLayer({LAYER}, norm_first=True)",
    "TransformerEncoderLayer time first": "nn.TransformerEncoderLayer(16, 2, 32)",
    "TransformerDecoder causal": f"nn.TransformerDecoder(nn.TransformerDecoderLayer({LAYER}), 2)",
    "Transformer causal": "nn.Transformer(16, 2, 2, 2, 32, batch_first=True)",
}
"""of the board"""


def subject(name: str) -> Subject:
    """One of `MODELS`."""
    lines = ["from torch import nn", f"model = {MODELS[name]}"]
    kind: Any = encoder if re.search("Transformer|Attention", name) else recurrent
    return written(name, lines, kind, causal=True if name.endswith("causal") else None)


LIBRARY = Library("torch", lambda: {"all": [*MODELS]}, subject)
