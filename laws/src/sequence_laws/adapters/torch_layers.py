"""torch's own layers: attention (whose masks are False at what is real) and recurrent networks."""

import re
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.inputs import Inputs
from sequence_laws.libraries import Library, written
from sequence_laws.subject import Subject

_MEMORY = ("memory_key_padding_mask",)
CALLS: dict[type[nn.Module], tuple[str, str, str, tuple[str, ...]]] = {
    nn.TransformerEncoder: ("{x}", "mask", "src_key_padding_mask", ()),
    nn.TransformerEncoderLayer: ("{x}", "src_mask", "src_key_padding_mask", ()),
    nn.TransformerDecoder: ("{x}, {memory}", "tgt_mask", "tgt_key_padding_mask", _MEMORY),
    nn.TransformerDecoderLayer: ("{x}, {memory}", "tgt_mask", "tgt_key_padding_mask", _MEMORY),
    nn.Transformer: (
        "{memory}, {x}",
        "tgt_mask",
        "tgt_key_padding_mask",
        ("src_key_padding_mask", *_MEMORY),
    ),
    nn.MultiheadAttention: ("{x}, {x}, {x}", "attn_mask", "key_padding_mask", ()),
}
"""layer -> what it is given, and its words for a mask of what may be seen, for padding, and for
padding of a memory"""
MEMORY = "torch.randn(7, {width}, generator=torch.Generator().manual_seed(2))"
"""what a decoder attends to: the same in every row, of which the last two are padding"""


class Encoder(Subject):
    """torch's attention, and layers with it; ``causal`` gives them torch's causal mask."""

    masks = ("right", "left", "holes")

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        self.called_with = next(words for kind, words in CALLS.items() if isinstance(model, kind))
        self.hidden = torch.arange(7) >= 5
        self.memory: Tensor | None = None
        if self.called_with[3]:
            drawn = MEMORY.format(width=inputs.width)
            self.memory = torch.randn(
                7, inputs.width or 1, generator=torch.Generator().manual_seed(2)
            )
            self.build = (*self.build, f"memory = {drawn}", "hidden = torch.arange(7) >= 5")

    @property
    def rows_first(self) -> bool:
        """True if inputs are (B, L, d)."""
        return any(getattr(m, "batch_first", False) for m in self.model.modules())

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """One pass; a row of nothing but padding is read as it is."""
        order, future, padding, hidden = self.called_with
        length, padding_mask = x.shape[1], self.real(x, padding_mask)
        words: dict[str, Tensor | None] = dict.fromkeys(hidden, self.hidden.repeat(len(x), 1))
        words[padding] = None if padding_mask is None else ~padding_mask
        future_mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        words[future] = future_mask if self.causal else None
        given = {"x": x}
        if self.memory is not None:
            given["memory"] = self.memory.to(x).repeat(len(x), 1, 1)
        if not self.rows_first:
            given = {word: value.transpose(0, 1) for word, value in given.items()}
        result = model(*(given[word[1:-1]] for word in order.split(", ")), **words)
        y: Tensor = result[0] if self.place else result
        return y if self.rows_first else y.transpose(0, 1)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        order, future, padding, hidden = self.called_with
        turn = "" if self.rows_first else ".transpose(0, 1)"
        memory = f"memory.to({x}).repeat(len({x}), 1, 1){turn}"
        given = order.format(x=f"{x}{turn}", memory=memory)
        seen = f"torch.ones({x}.shape[1], {x}.shape[1]).bool().triu(1)"
        mask = f", {future}={seen}" if self.causal else ""
        real = self.real_code(x, padding_mask)
        padded = "" if real is None else f", {padding}=~{real}"
        padded += "".join(f", {word}=hidden.repeat(len({x}), 1)" for word in hidden)
        return f"model({given}{mask}{padded}){self.place}{turn}"

    def encodings(self) -> Iterator[tuple[str, Self]]:
        """With another memory where it is padding."""
        if self.memory is not None:
            changed = self.memory + 3 * self.hidden[:, None]
            build = (*self.build, "memory = memory + 3 * hidden[:, None]")
            yield "with another memory in its padding", self.otherwise(memory=changed, build=build)


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
    """The subject of attention or layers with it, which read both ways unless given as causal; a
    decoder is causal unless that is denied."""
    if not isinstance(model, tuple(CALLS)):
        return None
    width = next(m for m in model.modules() if isinstance(m, nn.MultiheadAttention)).embed_dim
    decodes = isinstance(model, nn.TransformerDecoder | nn.TransformerDecoderLayer)
    known["causal"] = decodes if known.get("causal") is None else bool(known["causal"])
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
