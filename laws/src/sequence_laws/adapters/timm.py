"""timm: models of pictures as sequences of their patches, and the blocks inside them.

A picture is cut into patches in the order of the model's own, so that features (B, L, d) of L
patches are one: of these the outputs are what `forward_features` gives for each patch. Blocks are
tried as the models of sequences that they are, of any length.
"""

import re
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from sequence_laws.adapters.found import plain
from sequence_laws.errors import ShapeError
from sequence_laws.inputs import Inputs
from sequence_laws.libraries import Library, written
from sequence_laws.subject import Subject

SIDE, PATCH = 4, 8
"""patches a side of a picture; pixels a side of a patch"""
SIZES = f"img_size={SIDE * PATCH}, patch_size={PATCH}, embed_dim=32, num_classes=0"
VIT = (
    *("vit_tiny_patch16_224", "vit_relpos_small_patch16_224", "vit_small_patch16_rope_224"),
    *("vit_wee_patch16_reg1_gap_256", "flexivit_small", "deit_tiny_patch16_224"),
    *("deit_tiny_distilled_patch16_224", "deit3_small_patch16_224", "beit_base_patch16_224"),
    *("beitv2_base_patch16_224", "eva02_tiny_patch14_224", "eva_large_patch14_196"),
    *("cait_xxs24_224", "xcit_nano_12_p16_224"),
)
MIXERS = {
    "mixer": "",
    "gmixer": ", mlp_ratio=(1.0, 4.0), mlp_layer=mixers.GluMlp, act_layer=mixers.nn.SiLU",
    "resmlp": ", mlp_ratio=4, block_layer=mixers.ResBlock, norm_layer=mixers.Affine",
    "gmlp": ", mlp_ratio=6, block_layer=mixers.SpatialGatingBlock, mlp_layer=mixers.GatedMlp",
}
"""what the functions that make them small do not let through"""
BLOCKS = ("vit_tiny_patch16_224", "deit3_small_patch16_224")
"""models whose blocks read sequences of any length; those of others are made for one"""


class Pictures(Subject):
    """A model of pictures, of one size."""

    exempts = MappingProxyType(
        dict.fromkeys(("lengths", "cost"), "its pictures have one size: one number of patches")
    )
    idle = re.compile("fc_norm|cls_|blocks_token_only")
    idles = "read what is pooled for a class"

    def __init__(self, model: nn.Module, name: str, **known: Any) -> None:
        inputs = Inputs(width=3 * PATCH**2)
        super().__init__(model, name, inputs, **{**known, "causal": False})
        self.unmasked = "a picture has no padding"
        self.skipped: int = getattr(model, "num_prefix_tokens", 0)

    def call(self, model: Any, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Features of each patch of the pictures that patches are."""
        if x.shape[1] != SIDE**2:
            raise ShapeError(f"a length of {x.shape[1]} is no picture of {SIDE} x {SIDE} patches")
        made: Tensor = model.forward_features(pictures(x))[:, self.skipped :]
        return made

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        return f"model.forward_features(pictures({x}))[:, {self.skipped}:]"


def pictures(x: Tensor) -> Tensor:
    """Pictures (B, 3, H, W) of patches (B, L, 3 p p)."""
    parts = x.unflatten(2, (3, PATCH, PATCH)).unflatten(1, (SIDE, SIDE))
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def subject(name: str) -> Subject:
    """A model, or the blocks of one."""
    model, _, part = name.partition(" ")
    if model in MIXERS:
        made = f"mixers.MlpMixer({SIZES}, num_blocks=2{MIXERS[model]})"
        lines = ["from timm.models import mlp_mixer as mixers", f"model = {made}"]
    else:
        made = f"timm.create_model({model!r}, {SIZES}, depth=2, num_heads=4)"
        lines = ["import timm", f"model = {made}"]
    if part:
        lines = ["import timm", "from torch import nn", f"model = nn.Sequential(*{made}.blocks)"]
        return written(name, lines, plain, given=Inputs(width=32), causal=False)
    return written(name, ["from sequence_laws.adapters.timm import pictures", *lines], Pictures)


def groups() -> dict[str, list[str]]:
    """All models, and blocks."""
    import timm  # noqa: F401

    return {"all": [*VIT, *MIXERS, *(f"{name} blocks" for name in BLOCKS)]}


LIBRARY = Library("timm", groups, subject, ("timm", "torchvision"), ("timm",))
