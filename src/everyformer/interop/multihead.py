"""`MultiheadAttention`: signature and semantics of `torch.nn.MultiheadAttention`, any mixer inside.

    layer = nn.TransformerEncoderLayer(256, 8)
    layer.self_attn = ef.MultiheadAttention(256, 8, member="aft-local", max_length=512)

``member="attention"`` has the parameters of torch's module, by name and shape, and computes

    A = softmax_S(Q K^T / sqrt(D) + M),   out = concat_h(A_h V_h) W_o^T + b_o

with the keys and values bias_k, bias_v and (0, 0) behind those of the input, where requested. One
difference: a query that may see no key gives 0 (and weights 0), where torch gives NaN or not,
depending on which of its paths is taken: the fused kernel of torch's encoder layers never stands in
for this module. Every other mixer is built by `create_mixer` and reads query = key = value; its
parameters are called ``mixer.*``.

Masks are given in torch's convention (True or -inf hides). One that a member cannot honour is an
error, unless it hides nothing that the member shows anyway: a causal member takes the causal mask
that `torch.nn` layers insist on passing.

Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import heads_divide
from everyformer.core.outputs import MixerOutput
from everyformer.engines import exported  # noqa: F401 (forms that ONNX has)
from everyformer.engines.softmax.attention import attention_weights, softmax_attention
from everyformer.engines.softmax.visibility import Visibility, visibility
from everyformer.family import list_members
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.attention.options import AttentionOptions
from everyformer.interop.torch_masks import both, by_head, check_padding, for_mixer
from everyformer.models.build import create_mixer


def only_output(member: str, out: MixerOutput) -> Tensor:
    """The output of a mixer for a caller who takes nothing else.

    Raises:
        UnsupportedError: it gives losses too.
    """
    if out.losses:
        raise UnsupportedError(
            f"{member} adds losses of its own ({', '.join(out.losses)}), for which this signature "
            "has no place: use create_mixer"
        )
    return out.y


class NoWeights:
    """Placeholder for weights of softmax attention that `nn.TransformerEncoder` reads.

    It would make nested tensors of padded rows, and does not where one weight overrides torch
    functions, which this class does by its method's mere existence.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented

    weight = bias = property(lambda self: self)


class MultiheadAttention(nn.Module):
    """Drop-in for `torch.nn.MultiheadAttention`, which documents the arguments both have.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first,
            device, dtype: as in torch. What a member has no use for must keep its default.
        member: 'attention', or any other mixer (`everyformer list --mixers`).
        causal: whether tokens see the past only; with L queries and S keys, query i sees keys up
            to i + (S - L). Masks given in a call come on top.
        max_length: longest sequence, for members with a table over positions.
        options: the member's own options (`everyformer info NAME`).

    Raises:
        ConfigError, GeneError, UnsupportedError: an argument that the member has no use for.
    """

    in_proj_weight: Any
    in_proj_bias: Any
    q_proj_weight: Any
    k_proj_weight: Any
    v_proj_weight: Any
    out_proj: Any
    bias_k: Tensor | None
    bias_v: Tensor | None
    query_norm: nn.RMSNorm | None
    key_norm: nn.RMSNorm | None

    # read by torch's encoder layers: whether their fused kernel may stand in for this module
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        member: str = "attention",
        causal: bool = False,
        max_length: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.head_dim = heads_divide(embed_dim, num_heads, member)
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.member, self.causal = member, causal
        if member == "attention":
            self.mixer = None
            self._build_attention(bias, add_bias_kv, options, device=device, dtype=dtype)
            return
        self._refuse(add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn)
        self._refuse(kdim=self.kdim != embed_dim, vdim=self.vdim != embed_dim)
        size: dict[str, Any] = {"width": embed_dim, "heads": num_heads, "max_length": max_length}
        options = self._loose_options(options, bias)
        self.mixer = create_mixer(member, causal=causal, **size, **options)
        self.mixer.to(device=device, dtype=dtype)
        self.in_proj_weight = self.in_proj_bias = self.out_proj = NoWeights()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and weights, with shapes and layouts as in `torch.nn.MultiheadAttention`.

        The weights are None if ``need_weights`` is False, and for every member but 'attention':
        what such a member has to show, ``ef.trace`` shows. ``attn_mask`` is applied whatever
        ``is_causal`` says about it; the hint alone needs a module built with ``causal=True``.

        Raises:
            ShapeError: tensors or masks that do not go together.
            UnsupportedError: a mask, or a cross form, that the member does not have.
        """
        if query.is_nested:
            return self._nested(query, key, value, key_padding_mask, attn_mask)
        self._check(query, key, value)
        single = query.dim() == 2
        rows = self._as_rows(query)
        keys = rows if key is query else self._as_rows(key)
        values = rows if value is query else keys if value is key else self._as_rows(value)
        (batch, queries), sources = rows.shape[:2], keys.shape[1]
        if single and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        check_padding(key_padding_mask, batch, sources)
        pairs = by_head(attn_mask, batch, self.num_heads, (queries, sources))
        weights = None
        if self.mixer is None:
            if is_causal and pairs is None and not self.causal:
                raise ConfigError(
                    "is_causal=True says what attn_mask holds, but none was given: give it, or "
                    "build the module with `causal=True`"
                )
            mask = both(key_padding_mask, pairs)
            y, weights = self._attention(rows, keys, values, mask, need_weights)
        else:
            y = self._mix(
                rows, keys, values, for_mixer(self.mixer, key_padding_mask, pairs, is_causal)
            )
        if weights is not None:
            weights = (weights.mean(1) if average_attn_weights else weights).to(y.dtype)
            weights = weights[0] if single else weights
        if single:
            return y[0], weights
        return y if self.batch_first else y.transpose(0, 1), weights

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, member='{self.member}', causal={self.causal}"

    def _build_attention(
        self, bias: bool, add_bias_kv: bool, options: dict[str, Any], **like: Any
    ) -> None:
        """Parameters as torch's module has them, drawn in the same order."""
        for name, torch_name in (("widths", "kdim and vdim"), ("attention_dropout", "dropout")):
            if name in options:
                raise ConfigError(f"`{name}` goes by the name of {torch_name} here")
        o = self.options = from_dict(AttentionOptions, options, "attention.")
        kv_heads = o.kv_heads or self.num_heads
        self.windows = o.window if isinstance(o.window, tuple) else (o.window,)
        if self.num_heads % kv_heads:
            raise GeneError(
                f"num_heads={self.num_heads} is not a multiple of `kv_heads={kv_heads}`"
            )
        if len(self.windows) not in (1, self.num_heads):
            raise GeneError(f"`window={o.window}` must be one number, or one for each head")
        self.sizes = (self.embed_dim, *[kv_heads * self.head_dim] * 2)
        sources = (self.embed_dim, self.kdim, self.vdim)
        fused = len(set(sources)) == 1
        shapes: list[Any] = [(sum(self.sizes), self.embed_dim), None, None, None]
        if not fused:
            shapes = [None, *zip(self.sizes, sources, strict=True)]
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=bias, **like)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)
        names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        for name, shape in zip(names, shapes, strict=True):
            weight = None if shape is None else nn.init.xavier_uniform_(torch.empty(shape, **like))
            self.register_parameter(name, None if weight is None else nn.Parameter(weight))
        in_bias = nn.Parameter(torch.zeros(sum(self.sizes), **like)) if bias else None
        self.register_parameter("in_proj_bias", in_bias)
        for name, size in zip(("bias_k", "bias_v"), self.sizes[1:], strict=True):
            row = nn.init.xavier_normal_(torch.empty(1, 1, size, **like)) if add_bias_kv else None
            self.register_parameter(name, None if row is None else nn.Parameter(row))
        norm = {"normalized_shape": self.head_dim, **like}
        self.query_norm = nn.RMSNorm(**norm) if o.qk_norm else None
        self.key_norm = nn.RMSNorm(**norm) if o.qk_norm else None
        self.sink = nn.Parameter(torch.zeros(self.num_heads, **like)) if o.sink else None

    def _loose_options(self, options: dict[str, Any], bias: bool) -> dict[str, Any]:
        """Torch's ``bias`` and ``dropout`` under the names that the mixer has for them."""
        options = dict(options)
        if self.member not in MIXERS.names():
            return options  # `create_mixer` knows what to say
        mixer: Any = MIXERS.get(self.member)
        defaults = mixer.Options()
        if self.dropout:
            self._refuse(dropout=not hasattr(defaults, "attention_dropout"))
            options["attention_dropout"] = self.dropout
        if isinstance(getattr(defaults, "bias", None), tuple):
            options["bias"] = ("query", "key", "value", "output") if bias else ()
        elif hasattr(defaults, "bias"):
            options["bias"] = bias
        else:
            self._refuse(bias=not bias)
        return options

    def _refuse(self, **arguments: bool) -> None:
        names = [name for name, refused in arguments.items() if refused]
        if names:
            raise UnsupportedError(
                f"member '{self.member}' has no use for {', '.join(names)}: leave the default, or "
                "take member='attention'"
            )

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Shapes of the three inputs, as torch's module demands them."""
        channels = (self.embed_dim, self.kdim, self.vdim)
        batch = None if query.dim() == 2 else 0 if self.batch_first else 1
        sequence = 0 if batch is None or not self.batch_first else 1
        fits = query.dim() in (2, 3) and query.dim() == key.dim() == value.dim()
        fits = fits and tuple(t.shape[-1] for t in (query, key, value)) == channels
        fits = fits and key.shape[sequence] == value.shape[sequence]
        if fits and batch is not None:
            fits = query.shape[batch] == key.shape[batch] == value.shape[batch]
        if not fits:
            layout = (
                "(batch, length, channels)" if self.batch_first else "(length, batch, channels)"
            )
            raise ShapeError(
                f"query, key and value must be {layout} or (length, channels) with "
                f"{', '.join(map(str, channels))} channels and as many values as keys, not "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )

    def _as_rows(self, x: Tensor) -> Tensor:
        """(B, L, channels) of any of the three layouts."""
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        assert self.mixer is not None
        context = None
        if key is not query or value is not query:
            if not self.mixer.supports_cross:
                able = ", ".join(m.name for m in list_members(abilities=("cross",)) if m.is_mixer)
                raise UnsupportedError(
                    f"{self.member} mixes one sequence with itself, so query, key and value must "
                    f"be the same tensor; members with a cross form: {able}"
                )
            context = (key, value)
        out = self.mixer(query, context=context, mask=mask if mask.parts() else None)
        return only_output(self.member, out)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self._project(query, key, value)
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            rows = (k.shape[0], -1, -1)
            k = torch.cat((k, self.bias_k.expand(rows).to(k.dtype)), 1)
            v = torch.cat((v, self.bias_v.expand(rows).to(v.dtype)), 1)
            added += 1
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            added += 1
        visible = self._visible(query.shape[1], key.shape[1], mask, added, q.device)
        o, dropout = self.options, self.dropout if self.training else 0.0
        scores: dict[str, Any] = {"scale": o.scale, "softcap": o.softcap, "sink": self.sink}
        weights = None
        if need_weights:
            # torch returns the weights as they were used, dropout included
            weights = F.dropout(attention_weights(q, k, visible, **scores), dropout)
            y = weights.to(v.dtype) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        else:
            y = softmax_attention(q, k, v, visible, dropout=dropout, **scores)
        return self.out_proj(y.transpose(1, 2).flatten(2)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, L, channels) before they are split into heads."""
        if self.in_proj_weight is not None and query is key and key is value:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).split(self.sizes, -1)
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.split(self.sizes)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(self.sizes)
        inputs = (query, key, value)
        return tuple(F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))

    def _visible(
        self, queries: int, keys: int, mask: Mask, added: int, device: torch.device
    ) -> Visibility:
        """The mask of the keys of the input; the ``added`` ones behind them are always seen."""
        windowed = any(w is not None for w in self.windows)
        if not (mask.parts() or added or windowed) and (not self.causal or queries == keys):
            return Visibility(causal=self.causal)
        there = torch.arange(keys, device=device)[None]
        here = torch.arange(queries, device=device)[None] + (keys - queries)
        seen = visibility(
            mask,
            here,
            there,
            causal=self.causal,
            windows=self.windows,
            padding_mask=mask.padding_mask,
        ).mask
        if seen is None or not added:
            return Visibility(mask=seen)
        return Visibility(mask=F.pad(seen, (0, added), value=seen.dtype == torch.bool))

    def _nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        pairs: Tensor | None,
    ) -> tuple[Tensor, None]:
        """Rows of unequal length, which `nn.TransformerEncoder` makes of a padded batch in eval."""
        if key is not query or value is not query or padding is not None or pairs is not None:
            raise UnsupportedError(
                "a nested tensor must be query, key and value at once, and takes no mask: its rows "
                "have their own lengths"
            )
        lengths = [row.shape[0] for row in query.unbind()]
        mask = Mask.from_lengths(torch.tensor(lengths, device=query.device), max(lengths))
        assert mask.padding_mask is not None
        x = query.to_padded_tensor(0.0)
        x = x if self.batch_first else x.transpose(0, 1)
        y = self(x, x, x, key_padding_mask=~mask.padding_mask, need_weights=False)[0]
        y = y if self.batch_first else y.transpose(0, 1)
        return torch.nested.as_nested_tensor([r[:n] for r, n in zip(y, lengths, strict=True)]), None
