"""x-transformers: wrappers around its decoders and encoders, whose cache are intermediates."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.adapters.masks import KEEP
from sequence_laws.adapters.plain import Plain
from sequence_laws.calls import PlainCall
from sequence_laws.inputs import Inputs
from sequence_laws.libraries import Library, written

VOCABULARY, WIDTH = 64, 32
SIZES = f"dim={WIDTH}, depth=2, heads=2, attn_dim_head=32"
LAYERS = {
    "decoder": "Decoder({})",
    "decoder rotary": "Decoder({}, rotary_pos_emb=True)",
    "decoder alibi": "Decoder({}, alibi_pos_bias=True)",
    "decoder relative": "Decoder({}, rel_pos_bias=True)",
    "decoder flash": "Decoder({}, attn_flash=True, rotary_pos_emb=True)",
    "decoder grouped keys": "Decoder({}, attn_kv_heads=1, rotary_pos_emb=True)",
    "decoder normed keys": "Decoder({}, attn_qk_norm=True, use_rmsnorm=True, ff_glu=True)",
    "decoder shifted tokens": "Decoder({}, shift_tokens=1)",
    "decoder memory keys": "Decoder({}, attn_num_mem_kv=4)",
    "decoder sparse": "Decoder({}, attn_sparse_topk=4)",
    "decoder residual attention": "Decoder({}, residual_attn=True)",
    "decoder value residual": "Decoder({}, add_value_residual=True, rotary_pos_emb=True)",
    "decoder streams": "Decoder({}, num_residual_streams=2)",
    "decoder cross attention": "Decoder({}, cross_attend=True)",
    "encoder": "Encoder({})",
    "encoder rotary flash": "Encoder({}, rotary_pos_emb=True, attn_flash=True)",
    "encoder memory tokens": "Encoder({})",
}
WORDS = {"encoder memory tokens": ", num_memory_tokens=3"}
"""of the wrapper"""


class XTransformer(Plain):
    """A wrapper of token ids; one that attends to a context is given one."""

    bare = False
    """whether a mask is given without where rows start"""
    feeds_masks = False

    def __init__(self, model: nn.Module, name: str, **known: Any) -> None:
        layers: Any = model.attn_layers
        super().__init__(model, name, Inputs(VOCABULARY), causal=layers.causal, **known)
        self.masking = ("mask", KEEP)
        self.context = bool(layers.cross_attend)

    @property
    def streams(self) -> bool:  # type: ignore[override]
        """Whether it decodes."""
        return self.causal

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """One pass; of padding on the left it is told where rows start."""
        given, padding_mask = self._context(model, x), self.real(x, padding_mask)
        if padding_mask is not None:
            given["mask"] = padding_mask
            starts = padding_mask.long().argmax(1)
            if not self.bare and bool(starts.any()):
                given["seq_start_pos"] = starts
        return model(x, **given)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        starts = "" if self.bare or padding_mask is None else f", {self._starts(padding_mask)}"
        return f"{super().call_code(x, padding_mask)[:-1]}{starts}{self._context_code(x)})"

    def _starts(self, mask: str) -> str:
        return f"seq_start_pos={mask}.long().argmax(1)"

    def plain_calls(self) -> Iterator[PlainCall]:
        """With a mask of ones, and with a mask alone."""
        yield from super().plain_calls()
        other = self.otherwise(bare=True)
        yield PlainCall("with mask alone", f"pass {self._starts('mask')}", other, ("padding",))

    def feed(self, model: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Outputs of the next inputs alone, and the intermediates behind them."""
        words = {"input_not_include_cache": True, "return_intermediates": True}
        given = {**words, **self._context(model, x), "cache_age": x.shape[1]}
        result: tuple[Tensor, Any] = model(x, cache=cache, **given)
        return result

    def feed_code(self, masked: bool = False) -> list[str]:
        """The Python of it."""
        return [
            "def feed(x, cache):",
            "    return model(x, cache=cache, cache_age=x.shape[1], return_intermediates=True,",
            f"                 input_not_include_cache=True{self._context_code('x')})",
        ]

    def _context(self, model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        table = torch.eye(5, WIDTH).to(next(model.parameters()))
        return {"context": table.expand(len(x), -1, -1)} if self.context else {}

    def _context_code(self, x: str) -> str:
        table = f"torch.eye(5, {WIDTH}).to(next(model.parameters()))"
        return f", context={table}.expand(len({x}), -1, -1)" if self.context else ""


def subject(name: str) -> XTransformer:
    """One of `LAYERS`."""
    layers = LAYERS[name].format(SIZES)
    wrapper = f"num_tokens={VOCABULARY}, max_seq_len=128{WORDS.get(name, '')}"
    lines = [
        f"from x_transformers import {layers.partition('(')[0]}, TransformerWrapper",
        f"model = TransformerWrapper({wrapper}, attn_layers={layers})",
    ]
    made: Any = written(name, lines, XTransformer)
    return made


def groups() -> dict[str, list[str]]:
    """All of `LAYERS`."""
    import x_transformers  # noqa: F401

    return {"all": [*LAYERS]}


LIBRARY = Library("x-transformers", groups, subject, ("x-transformers",), ("x_transformers",))
