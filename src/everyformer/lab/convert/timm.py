"""ViT and gMLP of `timm`: weights of its modules, state dicts and saved folders into ours.

A system's sizes follow from its tensors; its heads, activation, norms, pooling and the sides of its
pictures from the module, or from what timm builds of a folder's config.json. Without timm a folder
is read whose architecture is a plain one. A state dict says none of them: timm's defaults are taken
then, and the report says so.
"""

import copy
import importlib
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.blocks.parts import activate
from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError
from everyformer.core.wording import shortened
from everyformer.lab.convert.agreement import compare, fill
from everyformer.lab.convert.architecture import (
    ALL_BIASES,
    activation,
    refuse,
    refuse_unknown,
)
from everyformer.lab.convert.checkpoint import Imported
from everyformer.lab.convert.folder import dequantised, read_config, read_folder
from everyformer.lab.convert.rules import Rule, in_layers, linked, take_all
from everyformer.models.build import build_model, configure
from everyformer.system.files import expanded

HEAD_DIM, PLAIN_WIDTHS = 64, (192, 384, 768, 1024)
"""channels of a head of timm's tiny, small, base and large ViTs, and their widths"""
PLAIN = re.compile(r"vit_(tiny|small|base|large)_patch\d+_\d+(\.\w+)?|gmlp_\w+")
"""architectures that are timm's classes as they are by default"""
FIELDS = re.compile(
    # what is read, what tensors show, and what is for training or for people
    r"""architecture|model_args|global_pool|img_size|act_layer|num_heads|
    num_(classes|features|blocks)|patch_size|in_chans|embed_dim|depth|mlp_ratio|qkv_bias|
    class_token|(pos_|patch_|proj_|attn_)?drop_rate|drop_path_rate|weight_init|fix_init|
    pretrained_cfg|label_(names|descriptions)""",
    re.VERBOSE,
)
"""what a config.json of timm, or its model_args, may say"""
ONLY: dict[str, Any] = dict.fromkeys(("fc_norm", "pre_norm", "qk_norm", "no_embed_class"), False)
ONLY |= {"final_norm": True, "proj_bias": True, "reg_tokens": 0}
"""values that have a counterpart, where others have none"""
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

    The outputs of a module, and of what timm builds of a folder, are compared with ours.

    Args:
        source: timm's module, its state dict, or a folder with config.json and safetensors.
        heads: of a ViT (default: the module's own, else width / 64).

    Raises:
        UnsupportedError: another system, or a variant that has no counterpart here; outputs that
            do not agree.
        CheckpointError: tensors missing or of other sizes.
        ConfigError: the number of heads is not known.
    """
    module, stated, notes = None, dict[str, Any](), list[str]()
    if isinstance(source, nn.Module):
        module, tensors = source, dict(source.state_dict())
    elif isinstance(source, Mapping):
        tensors = dict(source)
    else:
        tensors, notes = read_folder(expanded(source))
        tensors = dequantised(tensors, {}, None)
        module, stated = _built(read_config(expanded(source)), tensors)
    stated = _stated(module) if module is not None else stated
    stated |= {"heads": heads} if heads else {}
    if "pos_embed" in tensors:
        options, rules = _vit(tensors, stated)
    elif "blocks.0.mlp_channels.gate.proj.weight" in tensors:
        options, rules = _gmlp(tensors, stated)
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
    report.notes += notes
    fill(model, filled, None, report)
    if module is None:
        report.notes.append(
            "not compared with timm, which did not build it: what tensors do not show (heads, "
            "activation, epsilon, pooling) is what timm's usual models have, unless it is given"
        )
    else:
        build = partial(copy.deepcopy, module)
        compare(model, f"timm's {type(module).__name__}", lambda _: build().cpu(), report)
    return Imported(model, report)


def _built(
    config: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[nn.Module | None, dict[str, Any]]:
    """Timm's model of a config, with the weights; or, without timm, what the config says.

    Raises:
        UnsupportedError: it says what is not known here, or what only timm knows.
        CheckpointError: timm cannot build that, or it has other tensors.
    """
    name, args = str(config.get("architecture")), config.get("model_args") or {}
    if not isinstance(args, dict):
        raise CheckpointError("the config.json's model_args are no table of options")
    args = {"global_pool": config.get("global_pool"), **args}
    args = {key: value for key, value in args.items() if value is not None}
    refuse(args, **ONLY)
    refuse_unknown({**config, **args}, [*filter(FIELDS.fullmatch, (*config, *args)), *ONLY])
    try:
        timm = importlib.import_module("timm")
    except (ImportError, RuntimeError):  # it is not there, or torchvision is of another torch
        timm = None
    if timm is not None and name.partition(".")[0] in timm.list_models():
        sizes = {"num_classes": len(tensors.get("head.bias", ())), **args}
        try:
            with torch.device("meta"):
                module: nn.Module = timm.create_model(name, pretrained=False, **sizes)
            module.load_state_dict(tensors, assign=True)
        except Exception as error:  # timm's, of any kind
            reason = shortened(" ".join(str(error).split()), 200)
            raise CheckpointError(f"its config.json says another model: {reason}") from error
        return module, {}
    if not PLAIN.fullmatch(name):
        raise UnsupportedError(f"what timm's '{name}' is only timm knows: install timm")
    size, act = args.get("img_size"), args.get("act_layer", "gelu")
    stated = {
        "pooling": args.get("global_pool"),
        "heads": args.get("num_heads"),
        "feedforward": activation("gelu_new" if act == "gelu_tanh" else str(act)),
        "image": (size, size) if isinstance(size, int) else size,
    }
    return None, {key: value for key, value in stated.items() if value is not None}


def _stated(module: nn.Module) -> dict[str, Any]:
    """Facts of a module of timm beyond its tensors.

    Raises:
        UnsupportedError: norms or an activation that have no counterpart here.
    """
    norms = {name: part.eps for name, part in module.named_modules() if hasattr(part, "eps")}
    # the gate's own norm is torch's usual one on both sides
    kinds = {eps for name, eps in norms.items() if not name.endswith("gate.norm")}
    if len(kinds) != 1:
        raise UnsupportedError(f"timm's norms have the epsilons {sorted(kinds)}, ours have one")
    parts: dict[str, Any] = dict(module.named_modules())
    stem = parts.get("patch_embed") or parts.get("stem")
    mlp = parts.get("blocks.0.mlp") or parts.get("blocks.0.mlp_channels")
    stated = {
        "heads": getattr(parts.get("blocks.0.attn"), "num_heads", None),
        "pooling": getattr(module, "global_pool", None),
        "norm_eps": kinds.pop(),
        "feedforward": _activation(getattr(mlp, "act", None)),
        "image": getattr(stem, "img_size", None),
        "block": type(parts.get("blocks.0")).__name__,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _activation(act: Any) -> str | None:
    """Our name of a layer's activation, by what it makes of numbers."""
    if act is None:
        return None
    x = torch.linspace(-6, 6, 97)
    for name in ("gelu", "gelu-tanh", "gelu-sigmoid", "relu", "silu"):
        if torch.allclose(act(x.clone()), activate(x, name), rtol=0, atol=1e-6):
            return name
    raise UnsupportedError(f"timm's activation {type(act).__name__} has no counterpart here")


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


def _image(
    tensors: dict[str, Tensor], stem: str, patches: int, stated: dict[str, Any]
) -> dict[str, Any]:
    """Options that patches and head say."""
    width, channels, patch, across = _shape(tensors, f"{stem}.weight", 4)
    blocks = [re.match(r"blocks\.(\d{1,9})\.", name) for name in tensors]
    side = math.isqrt(patches) * patch
    height, breadth = stated.get("image", (side, side))
    if patch != across or height * breadth != patches * patch * patch:
        raise UnsupportedError(
            f"{patches} patches of {patch}x{across} are not those of an image of "
            f"{height}x{breadth}, with patches as high as wide"
        )
    if "head.weight" not in tensors:
        raise CheckpointError("the checkpoint lacks head.weight: it classifies nothing")
    return {
        "width": width,
        "layers": 1 + max((int(result[1]) for result in blocks if result), default=0),
        "image": (channels, height, breadth),
        "patch": patch,
        "classes": _shape(tensors, "head.weight", 2)[0],
        "norm_eps": stated.get("norm_eps", 1e-6),
    }


def _vit(tensors: dict[str, Tensor], stated: dict[str, Any]) -> tuple[dict[str, Any], list[Rule]]:
    # a norm behind the pooling, and tokens that pictures have not
    shown = {"fc_norm": "fc_norm.weight" in tensors, "reg_token": "reg_token" in tensors}
    refuse(stated | shown, block="Block", fc_norm=False, reg_token=False)
    _, tokens, width = _shape(tensors, "pos_embed", 3)
    first = "cls_token" in tensors
    options = _image(tensors, "patch_embed.proj", tokens - first, stated)
    heads, pooling = stated.get("heads"), stated.get("pooling", "token" if first else "avg")
    if heads is None and width not in PLAIN_WIDTHS:
        raise ConfigError(
            f"how many heads a ViT of {width} channels has cannot be read off its tensors: give "
            "`heads=...`"
        )
    if pooling != ("token" if first else "avg"):
        raise UnsupportedError(
            f"timm's global_pool='{pooling}' {'beside a' if first else 'without'} class token has "
            "no counterpart here (only 'token' with one and 'avg' without have)"
        )
    biased = "blocks.0.attn.qkv.bias" in tensors
    options |= {
        "member": "vit",
        "heads": heads or width // HEAD_DIM,
        "expansion": _shape(tensors, "blocks.0.mlp.fc1.weight", 2)[0] / width,
        "bias": ALL_BIASES if biased else ("output",),
        "pooling": "class" if first else "mean",
        "feedforward": stated.get("feedforward", "gelu"),
    }
    rules = [
        *linked({"patches": "patch_embed.proj", **ENDS}),
        Rule(("position.table",), ("pos_embed",), lead=True),
        Rule(("pool.token",), ("cls_token",)),
        *in_layers(options["layers"], "blocks", VIT_LAYER),
    ]
    return options, rules


def _gmlp(tensors: dict[str, Tensor], stated: dict[str, Any]) -> tuple[dict[str, Any], list[Rule]]:
    """Their W and b are (L, L) and (L); ours have a dimension of heads in front."""
    gates = [name for name in tensors if ".mlp_channels.gate.proj." in name]
    tensors |= {name: tensors[name][None] for name in gates}
    tokens = _shape(tensors, "blocks.0.mlp_channels.gate.proj.weight", 3)[-1]
    options = _image(tensors, "stem.proj", tokens, stated)
    hidden = _shape(tensors, "blocks.0.mlp_channels.fc1.weight", 2)[0]
    refuse(stated, feedforward="gelu", pooling="avg", block="SpatialGatingBlock")
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
