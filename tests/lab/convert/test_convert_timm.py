"""Weights of timm's ViT and gMLP without timm: by formulas, and what a config.json says."""

import json
import math
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from everyformer.core.errors import ConfigError, EveryformerError, UnsupportedError
from everyformer.lab.convert import import_timm

WIDTH, HIDDEN, CLASSES, PATCHES = 8, 32, 5, 4


def layer(name, rows, columns):
    return {
        f"{name}.weight": torch.randn(rows, columns) / math.sqrt(columns),
        f"{name}.bias": torch.randn(rows),
    }


def norm(name, size):
    return {f"{name}.weight": 1 + 0.2 * torch.randn(size), f"{name}.bias": torch.randn(size)}


def gmlp_tensors():
    torch.manual_seed(0)
    tensors = {
        "stem.proj.weight": torch.randn(WIDTH, 3, 4, 4),
        "stem.proj.bias": torch.randn(WIDTH),
    }
    for n in range(2):
        inside = f"blocks.{n}.mlp_channels"
        tensors |= norm(f"blocks.{n}.norm", WIDTH)
        tensors |= layer(f"{inside}.fc1", HIDDEN, WIDTH)
        tensors |= norm(f"{inside}.gate.norm", HIDDEN // 2)
        tensors |= layer(f"{inside}.gate.proj", PATCHES, PATCHES)
        tensors |= layer(f"{inside}.fc2", WIDTH, HIDDEN // 2)
    return tensors | norm("norm", WIDTH) | layer("head", CLASSES, WIDTH)


def gmlp_formula(t, images):
    """timm's forward pass, written from its tensors alone."""
    x = F.conv2d(images, t["stem.proj.weight"], t["stem.proj.bias"], stride=4)
    x = x.flatten(2).transpose(1, 2)
    for n in range(2):
        block = f"blocks.{n}.mlp_channels"

        def linear(name, y, block=block):
            return F.linear(y, t[f"{block}.{name}.weight"], t[f"{block}.{name}.bias"])

        y = F.layer_norm(
            x, (WIDTH,), t[f"blocks.{n}.norm.weight"], t[f"blocks.{n}.norm.bias"], 1e-6
        )
        u, v = F.gelu(linear("fc1", y)).chunk(2, -1)
        gate = f"{block}.gate.norm"
        v = F.layer_norm(v, (HIDDEN // 2,), t[f"{gate}.weight"], t[f"{gate}.bias"])
        x = x + linear("fc2", u * linear("gate.proj", v.transpose(1, 2)).transpose(1, 2))
    x = F.layer_norm(x, (WIDTH,), t["norm.weight"], t["norm.bias"], 1e-6).mean(1)
    return F.linear(x, t["head.weight"], t["head.bias"])


def test_gmlp_of_timm_gives_what_its_formula_gives():
    tensors, images = gmlp_tensors(), torch.rand(2, 3, 8, 8)
    model, report = import_timm(tensors)
    assert (report.made, report.left) == ([], [])
    expected = gmlp_formula(tensors, images)
    torch.testing.assert_close(model(images).logits, expected, rtol=0, atol=1e-5)


def vit_tensors():
    tensors = norm("norm", WIDTH) | layer("head", CLASSES, WIDTH)
    tensors |= {"pos_embed": torch.randn(1, 5, WIDTH), "cls_token": torch.randn(1, 1, WIDTH)}
    tensors |= {"patch_embed.proj.weight": torch.randn(WIDTH, 3, 4, 4)}
    tensors |= {"patch_embed.proj.bias": torch.randn(WIDTH)}
    for part, rows, columns in (
        ("attn.qkv", 3 * WIDTH, WIDTH), ("attn.proj", WIDTH, WIDTH),
        ("mlp.fc1", HIDDEN, WIDTH), ("mlp.fc2", WIDTH, HIDDEN),
    ):  # fmt: skip
        tensors |= layer(f"blocks.0.{part}", rows, columns)
    return tensors | norm("blocks.0.norm1", WIDTH) | norm("blocks.0.norm2", WIDTH)


@pytest.mark.parametrize("biased", [True, False])
def test_a_vit_has_the_biases_that_its_tensors_have(biased):
    tensors = vit_tensors()
    if not biased:
        del tensors["blocks.0.attn.qkv.bias"]
    model, report = import_timm(tensors, heads=2)
    assert (report.made, report.left, report.difference) == ([], [], None)
    assert report.notes[-1].startswith("not compared with timm, which did not build it: ")
    assert len(model.stack.blocks[0].mixer.project.biases or {}) == 3 * biased


def test_what_has_no_counterpart_is_refused():
    with pytest.raises(UnsupportedError, match="neither of timm's VisionTransformer"):
        import_timm({"conv.weight": torch.zeros(1)})
    with pytest.raises(UnsupportedError, match=r"blocks\.0\.ls1\.gamma"):
        import_timm(gmlp_tensors() | {"blocks.0.ls1.gamma": torch.ones(WIDTH)})
    vit = {
        "pos_embed": torch.zeros(1, 5, 24),
        "cls_token": torch.zeros(1, 1, 24),
        "patch_embed.proj.weight": torch.zeros(24, 3, 4, 4),
        "blocks.0.mlp.fc1.weight": torch.zeros(96, 24),
        "head.weight": torch.zeros(CLASSES, 24),
    }
    with pytest.raises(ConfigError, match=r"24 channels.*heads="):
        import_timm(vit)
    for name, field in (("fc_norm.weight", "fc_norm"), ("reg_token", "reg_token")):
        with pytest.raises(UnsupportedError, match=f"{field}=True"):
            import_timm(vit | {name: torch.zeros(1, 1, 24)}, heads=4)


SHAPES = [(), (0,), (3,), (2, 0), (2, 3), (1, 2, 3, 4, 5), (70_000, 1, 1)]
# the two blocks alike
OF_ONE = [name for name in gmlp_tensors() if not name.startswith("blocks.1.")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OF_ONE)
def test_tensors_of_any_shape_are_refused_in_one_sentence(name, shape):
    forged = gmlp_tensors() | {name: torch.zeros(shape)}
    missing = {key: value for key, value in gmlp_tensors().items() if key != name}
    named = gmlp_tensors() | {"blocks": torch.zeros(1), f"blocks.x.{name}": torch.zeros(1)}
    for tensors in (forged, missing, named):
        with pytest.raises(EveryformerError) as caught:
            import_timm(tensors)
        assert "\n" not in str(caught.value)


ARGS = {"embed_dim": WIDTH, "depth": 1, "num_heads": 2, "patch_size": 4, "img_size": 8}


def folder_of(folder, args, tensors=None, **config):
    save_file(tensors or vit_tensors(), folder / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "model_args": {**ARGS, **args}, **config}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_says_heads_activation_and_sides(tmp_path):
    table = torch.randn(1, 1 + 2 * PATCHES, WIDTH)
    tensors = vit_tensors() | {"pos_embed": table}
    args = {"act_layer": "quick_gelu", "img_size": [8, 16]}
    model, report = import_timm(folder_of(tmp_path, args, tensors))
    config = model.config
    assert (config.heads, config.image, config.pooling) == (2, (3, 8, 16), "class")
    assert config.genes["feedforward"].name == "gelu-sigmoid"
    assert report.notes[-1].startswith("compared" if find_spec("timm") else "not compared with")


@pytest.mark.parametrize(
    ("args", "config", "message"),
    [
        ({"global_pool": "avg", "fc_norm": False}, {}, r"global_pool='avg' beside a class token"),
        ({}, {"global_pool": "max"}, r"global_pool='max' beside|another model"),
        ({"act_layer": "tanh"}, {}, "activation"),
        ({"reg_tokens": 4}, {}, r"reg_tokens=4.*\(only 0 has\)"),
        ({"norm_layer": "rmsnorm"}, {}, r"norm_layer='rmsnorm', which the import does not know"),
        ({}, {"sampler": "x" * 3000}, r"sampler='x{40,60}…, which the import does not know"),
        ({"checkpoint_path": "a.pth"}, {}, r"checkpoint_path='a.pth', which the import"),
        ({"img_size": [4, 8]}, {}, "another model|not those of an image of 4x8"),
        ({}, {"architecture": "vit_tall_patch16_224"}, "'vit_tall_patch16_224' is only timm knows"),
    ],
)
def test_what_a_folder_says_and_ours_cannot_be_is_refused(args, config, message, tmp_path):
    with pytest.raises(EveryformerError, match=message) as caught:
        import_timm(folder_of(tmp_path, args, **config))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
