"""torch's own layers: encoders, decoders (of whose masks False is real) and recurrent networks."""

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.inputs import Inputs
from sequence_laws.subject import Subject

Encoders = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
Decoders = (nn.TransformerDecoder, nn.TransformerDecoderLayer)


class Encoder(Subject):
    """`nn.TransformerEncoder` and its layer; ``causal`` gives them torch's causal mask."""

    masks = ("right", "left", "holes")

    @property
    def rows_first(self) -> bool:
        """True if inputs are (B, L, d)."""
        return any(getattr(m, "batch_first", False) for m in self.model.modules())

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """One pass; a row of nothing but padding is read as it is."""
        mask = None
        if self.causal:
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        padding_mask = self.real(x, padding_mask)
        padding = None if padding_mask is None else ~padding_mask
        given = x if self.rows_first else x.transpose(0, 1)
        layers = isinstance(model, nn.TransformerEncoder)
        named = {"mask" if layers else "src_mask": mask, "src_key_padding_mask": padding}
        y: Tensor = model(given, **named)
        return y if self.rows_first else y.transpose(0, 1)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        turn = "" if self.rows_first else ".transpose(0, 1)"
        word = "mask" if isinstance(self.model, nn.TransformerEncoder) else "src_mask"
        future = f"torch.ones({x}.shape[1], {x}.shape[1]).bool().triu(1)"
        mask = f", {word}={future}" if self.causal else ""
        real = self.real_code(x, padding_mask)
        padding = "" if real is None else f", src_key_padding_mask=~{real}"
        return f"model({x}{turn}{mask}{padding}){turn}"


class Decoder(Encoder):
    """`nn.TransformerDecoder` and its layer, next to a memory (n, d) that every row reads, of which
    the last two are padding."""

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        drawn = f"torch.randn(7, {inputs.width}, generator=torch.Generator().manual_seed(2))"
        self.memory = torch.randn(7, inputs.width or 1, generator=torch.Generator().manual_seed(2))
        self.hidden = torch.arange(7) >= 5
        self.build = (*self.build, f"memory = {drawn}.double()", "hidden = torch.arange(7) >= 5")

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """One pass."""
        rows, length, padding_mask = len(x), x.shape[1], self.real(x, padding_mask)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        memory = self.memory.to(x).repeat(rows, 1, 1)
        y: Tensor = model(
            x if self.rows_first else x.transpose(0, 1),
            memory if self.rows_first else memory.transpose(0, 1),
            tgt_mask=mask,
            tgt_key_padding_mask=None if padding_mask is None else ~padding_mask,
            memory_key_padding_mask=self.hidden.repeat(rows, 1),
        )
        return y if self.rows_first else y.transpose(0, 1)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        turn = "" if self.rows_first else ".transpose(0, 1)"
        future = f"torch.ones({x}.shape[1], {x}.shape[1]).bool().triu(1)"
        mask = f", tgt_mask={future}" if self.causal else ""
        real = self.real_code(x, padding_mask)
        padding = "" if real is None else f", tgt_key_padding_mask=~{real}"
        memory = f"memory.repeat(len({x}), 1, 1){turn}{mask}{padding}"
        hidden = f"memory_key_padding_mask=hidden.repeat(len({x}), 1)"
        return f"model({x}{turn}, {memory}, {hidden}){turn}"

    def encodings(self) -> Iterator[tuple[str, Self]]:
        """With another memory where it is padding."""
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
    """The subject of an encoder, both ways unless it is given as causal, or of a decoder, which is
    causal unless that is denied."""
    if not isinstance(model, Encoders + Decoders):
        return None
    width = next(m for m in model.modules() if isinstance(m, nn.MultiheadAttention)).embed_dim
    if isinstance(model, Decoders):
        known["causal"] = known.get("causal") is not False
        return Decoder(model, name, Inputs(width=width), **known)
    known["causal"] = bool(known.get("causal"))
    return Encoder(model, name, Inputs(width=width), **known)


def recurrent(model: nn.Module, name: str, **known: Any) -> Subject | None:
    """The subject of a recurrent network; causal unless it is bidirectional, which is no claim."""
    if not isinstance(model, nn.RNNBase):
        return None
    known["causal"] = not model.bidirectional or bool(known.get("causal"))
    return Recurrent(model, name, Inputs(width=model.input_size), **known)
