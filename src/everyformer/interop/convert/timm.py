"""ViT and gMLP of `timm`: weights of its modules, state dicts and saved folders into ours.

timm itself is not needed: what a system is follows from the names of its tensors, and its sizes
from their shapes. The number of heads cannot be read off; released ViTs have heads of 64 channels.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError
from everyformer.interop.convert.architecture import ALL_BIASES
from everyformer.interop.convert.checkpoint import Imported, fill, read_folder
from everyformer.interop.convert.rules import Rule, in_layers, linked, take_all
from everyformer.models.build import build_model, configure
from everyformer.system.files import expanded

HEAD_DIM = 64
"""channels of a head in all released ViTs of timm"""
ENDS = {"stack.norm": "norm", "pool.head": "head"}
VIT_LAYER = {
    "mixer.project": ("attn.qkv",),
    "mixer.out": "attn.proj",
    "mixer_norm": "norm1",
    "feedforward.up": "mlp.fc1",
    "feedforward.down": "mlp.fc2",
    "feedforward_norm": "norm2",
}
GMLP_LAYER = {
    "mixer_norm": "norm",
    "mixer.up": "mlp_channels.fc1",
    "mixer.norm": "mlp_channels.gate.norm",
    "mixer.out": "mlp_channels.fc2",
}


def import_timm(
    source: nn.Module | Mapping[str, Tensor] | str | Path, *, heads: int | None = None
) -> Imported:
    """A ViT or gMLP of timm as an image classifier of this library, in evaluation mode.

    Args:
        source: timm's module, its state dict, or a folder with config.json and safetensors.
        heads: of a ViT (default: the module's own, else width / 64).

    Raises:
        UnsupportedError: another system, or a variant whose tensors have no counterpart here.
        CheckpointError: tensors missing or of other sizes.
        ConfigError: the number of heads is not known.
    """
    if isinstance(source, nn.Module):
        first: Any = source.get_submodule("blocks.0")
        heads = heads or getattr(getattr(first, "attn", None), "num_heads", None)
        tensors = dict(source.state_dict())
    elif isinstance(source, Mapping):
        tensors = dict(source)
    else:
        tensors = read_folder(expanded(source))
    if "pos_embed" in tensors:
        options, rules = _vit(tensors, heads)
    elif "blocks.0.mlp_channels.gate.proj.weight" in tensors:
        options, rules = _gmlp(tensors)
    else:
        raise UnsupportedError(
            "these tensors are neither of timm's VisionTransformer (no pos_embed) nor of its gMLP "
            "(no blocks.0.mlp_channels.gate.proj.weight)"
        )
    model = build_model(configure(options.pop("member"), "classify-image", **options))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    filled, report = take_all(rules, tensors, shapes)
    if report.left:
        raise UnsupportedError(
            f"timm's {', '.join(report.left[:5])} have no counterpart here, so the model would "
            "give other outputs"
        )
    fill(model, filled)
    return Imported(model.eval(), report)


def _shape(tensors: dict[str, Tensor], name: str, dims: int) -> torch.Size:
    """The shape of a tensor of ``dims`` dimensions, none of them empty."""
    if name not in tensors:
        raise CheckpointError(f"the checkpoint lacks {name}: it is cut short, or of another kind")
    shape = tensors[name].shape
    if len(shape) != dims or min(shape) < 1:
        raise CheckpointError(
            f"the checkpoint's {name} is {tuple(shape)}, where timm has {dims} dimensions"
        )
    return shape


def _image(tensors: dict[str, Tensor], stem: str, patches: int) -> dict[str, Any]:
    """Options that patches and head say."""
    width, channels, patch, _ = _shape(tensors, f"{stem}.weight", 4)
    blocks = [re.match(r"blocks\.(\d{1,9})\.", name) for name in tensors]
    side = math.isqrt(patches)
    if side * side != patches:
        raise UnsupportedError(f"{patches} patches are not those of a square image")
    if "head.weight" not in tensors:
        raise CheckpointError("the checkpoint lacks head.weight: it classifies nothing")
    return {
        "width": width,
        "layers": 1 + max((int(result[1]) for result in blocks if result), default=0),
        "image": (channels, side * patch, side * patch),
        "patch": patch,
        "classes": _shape(tensors, "head.weight", 2)[0],
        "norm_eps": 1e-6,
    }


def _vit(tensors: dict[str, Tensor], heads: int | None) -> tuple[dict[str, Any], list[Rule]]:
    _, tokens, width = _shape(tensors, "pos_embed", 3)
    options = _image(tensors, "patch_embed.proj", tokens - ("cls_token" in tensors))
    if heads is None and width % HEAD_DIM:
        raise ConfigError(
            f"how many heads a ViT of {width} channels has cannot be read off its tensors: give "
            "heads=..."
        )
    biased = "blocks.0.attn.qkv.bias" in tensors
    options |= {
        "member": "vit",
        "heads": heads or width // HEAD_DIM,
        "expansion": _shape(tensors, "blocks.0.mlp.fc1.weight", 2)[0] / width,
        "bias": ALL_BIASES if biased else ("output",),
        "pooling": "class" if "cls_token" in tensors else "mean",
    }
    rules = [
        *linked({"patches": "patch_embed.proj", **ENDS}),
        Rule(("position.table",), ("pos_embed",), lead=True),
        Rule(("pool.token",), ("cls_token",)),
        *in_layers(options["layers"], "blocks", VIT_LAYER),
    ]
    return options, rules


def _gmlp(tensors: dict[str, Tensor]) -> tuple[dict[str, Any], list[Rule]]:
    """Their W and b are (L, L) and (L); ours have a dimension of heads in front."""
    gates = [name for name in tensors if ".mlp_channels.gate.proj." in name]
    tensors |= {name: tensors[name][None] for name in gates}
    tokens = _shape(tensors, "blocks.0.mlp_channels.gate.proj.weight", 3)[-1]
    options = _image(tensors, "stem.proj", tokens)
    hidden = _shape(tensors, "blocks.0.mlp_channels.fc1.weight", 2)[0]
    options |= {"member": "gmlp", "mlp_ratio": hidden / options["width"], "heads": 1}
    rules = [
        *linked({"patches": "stem.proj", **ENDS}),
        *in_layers(options["layers"], "blocks", GMLP_LAYER),
    ]
    for n in range(options["layers"]):
        mixer, gate = f"stack.blocks.{n}.mixer", f"blocks.{n}.mlp_channels.gate.proj"
        rules.append(Rule((f"{mixer}.spatial",), (f"{gate}.weight",)))
        rules.append(Rule((f"{mixer}.bias",), (f"{gate}.bias",)))
    return options, rules
