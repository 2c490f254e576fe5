"""Modules and folders of timm itself: ours give the same outputs, or the import is refused."""

import pytest
import torch
from torch import nn

from everyformer.core.errors import CheckpointError, EveryformerError, UnsupportedError
from everyformer.lab.convert import import_timm

timm = pytest.importorskip("timm", reason="in the run with the newest releases")

VisionTransformer, MlpMixer = timm.models.VisionTransformer, timm.models.MlpMixer
SIZES = {"img_size": 8, "patch_size": 4, "num_classes": 5, "embed_dim": 8}
VIT = {**SIZES, "depth": 2, "num_heads": 2}
GMLP = {**SIZES, "num_blocks": 2, "mlp_ratio": 6, "mlp_layer": timm.layers.GatedMlp}
GMLP["block_layer"] = timm.models.mlp_mixer.SpatialGatingBlock


def coarse(width, **_):
    return nn.LayerNorm(width, eps=1e-2)


AGREE = {
    "gmlp": (MlpMixer, GMLP),
    "gmlp, wide": (MlpMixer, {**GMLP, "img_size": (8, 16)}),
    "gmlp, coarse norms": (MlpMixer, {**GMLP, "norm_layer": coarse}),
    "no biases": (VisionTransformer, {**VIT, "qkv_bias": False}),
    "tall": (VisionTransformer, {**VIT, "img_size": (16, 8)}),
    "mean": (VisionTransformer, {**VIT, "class_token": False, "global_pool": "avg",
                                 "fc_norm": False}),
    "coarse norms": (VisionTransformer, {**VIT, "norm_layer": coarse}),
    **{name: (VisionTransformer, {**VIT, "act_layer": name})
       for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")},
}  # fmt: skip
REFUSED = {
    r"'avg' beside a class token": {"global_pool": "avg", "fc_norm": False},
    r"'max' beside a class token": {"global_pool": "max", "fc_norm": False},
    r"'avgmax' beside a class token": {"global_pool": "avgmax", "fc_norm": False},
    r"'max' without class token": {
        "global_pool": "max", "fc_norm": False, "class_token": False,
    },
    r"block='ResPostBlock'": {"block_fn": timm.models.vision_transformer.ResPostBlock},
    r"activation Tanh has no counterpart": {"act_layer": "tanh"},
    r"2 patches of 4x8 are not those": {"patch_size": (4, 8)},
    "has reg_token=True, which has no counterpart": {"reg_tokens": 1},
    "has fc_norm=True, which has no counterpart": {"class_token": False, "global_pool": "avg"},
}  # fmt: skip


def drawn(cls, options):
    torch.manual_seed(0)
    module = cls(**options).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return module


def images(size):
    height, width = size if isinstance(size, tuple) else (size, size)
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", AGREE)
def test_modules_give_the_same_outputs(case):
    cls, options = AGREE[case]
    module, pixels = drawn(cls, options), images(options["img_size"])
    model, report = import_timm(module)
    assert (report.made, report.left) == ([], [])
    assert report.difference < 1e-12
    torch.testing.assert_close(model(pixels).logits, module(pixels), rtol=0, atol=1e-5)


@pytest.mark.parametrize("message", REFUSED)
def test_variants_without_a_counterpart_are_refused_by_name(message):
    with pytest.raises(EveryformerError, match=message):
        import_timm(drawn(VisionTransformer, VIT | REFUSED[message]))


def test_norms_that_differ_are_refused():
    module = drawn(VisionTransformer, VIT)
    module.norm.eps = 1e-3
    with pytest.raises(UnsupportedError, match=r"epsilons \[1e-06, 0.001\], ours have one"):
        import_timm(module)


def test_what_no_field_tells_is_found_by_comparing():
    module = drawn(VisionTransformer, VIT)
    for block in module.blocks:
        block.attn.scale *= 1.01
        block.attn.fused_attn = False
    with pytest.raises(UnsupportedError, match=r"off by .* from those of timm's VisionTransformer"):
        import_timm(module)


def saved(folder, name="vit_tiny_patch16_224", **options):
    options = {"depth": 1, "num_classes": 5, "img_size": 32, "patch_size": 8, **options}
    module = drawn(timm.create_model, {"model_name": name, **options})
    timm.models.save_for_hf(module, folder, model_args=options, safe_serialization=True)
    return module


@pytest.mark.parametrize(
    "options",
    [
        {"act_layer": "quick_gelu"},
        {"img_size": (16, 32)},
        {"num_heads": 2, "drop_path_rate": 0.1},
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
    ],
)
def test_a_saved_folder_gives_the_same_outputs(options, tmp_path):
    module, pixels = saved(tmp_path, **options), images(options.get("img_size", 32))
    model, report = import_timm(tmp_path)
    assert report.difference < 1e-12
    torch.testing.assert_close(model(pixels).logits, module(pixels), rtol=0, atol=1e-5)


def test_a_folder_of_a_system_that_timm_alone_knows_is_read(tmp_path):
    module = saved(tmp_path, name="deit_tiny_patch16_224")
    model, report = import_timm(tmp_path)
    assert (model.config.heads, report.difference < 1e-12) == (3, True)
    torch.testing.assert_close(model(images(32)).logits, module(images(32)), rtol=0, atol=1e-5)


def test_a_folder_whose_config_says_another_model_is_refused(tmp_path):
    saved(tmp_path)
    config = (tmp_path / "config.json").read_text()
    assert '"depth": 1' in config
    (tmp_path / "config.json").write_text(config.replace('"depth": 1', '"depth": 2'))
    with pytest.raises(CheckpointError, match=r"config.json says another model: .*blocks\.1\."):
        import_timm(tmp_path)
