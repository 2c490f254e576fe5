"""Options that a task does not read are refused; what a member's row says of other tasks is not."""

from typing import Any

import pytest

import everyformer as ef
from everyformer.core.errors import GeneError
from everyformer.models.build import configure
from everyformer.models.draft import READ_IN
from everyformer.training.spec import preset

SMALL: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2}
VALUES: dict[str, Any] = {
    "layer_losses": True, "lookahead": 0.5, "head_transform": True, "decoder_layers": 3,
    "quantiles": (0.25, 0.5), "pixels": {"places": "sinusoids"}, "decision": {"table": 9},
}  # fmt: skip


@pytest.mark.parametrize("name", READ_IN)
def test_an_option_of_another_task_is_refused_with_its_own(name: str) -> None:
    task = "lm" if "lm" not in READ_IN[name] else "classify-text"
    with pytest.raises(GeneError, match=f"{name}=.* is read in .*{READ_IN[name][0]}.*'{task}'"):
        configure("attention", task, **{name: VALUES[name]})
    for own in READ_IN[name]:
        image = {"source_image": (1, 4, 4)} if own == "super-resolution" else {}
        configure("attention", own, **{name: VALUES[name]}, **image)


@pytest.mark.parametrize(
    ("member", "task"),
    [
        ("learned-per-layer", "classify-text"),
        ("bert", "classify-text"),
        ("image-transformer", "lm"),
    ],
)
def test_a_row_may_say_what_its_other_tasks_read(member: str, task: str) -> None:
    configure(member, task, **SMALL)
    assert preset(member, task).model


@pytest.mark.parametrize("depth", ["calm", "depth-adaptive"])
@pytest.mark.parametrize("option", [{"layer_losses": True}, {"lookahead": 0.5}])
def test_exits_and_losses_of_other_layers_are_not_combined(depth, option):
    [name] = option
    with pytest.raises(GeneError, match=f"`{name}` and depth '{depth}' both say"):
        ef.create_model("attention", "lm", depth=depth, **SMALL, **option)


@pytest.mark.parametrize(
    ("image", "patch", "side"),
    [
        ((3, 32, 32), None, 4), ((3, 12, 10), None, 2), ((1, 9, 27), None, 3), ((1, 7, 8), None, 1),
        ((3, 32, 32), 8, 8), (None, None, 4),
    ],
)  # fmt: skip
def test_patches_fit_the_picture_where_nothing_is_said(image, patch, side):
    config = configure("vit", "classify-image", image=image, patch=patch, **SMALL)
    assert config.side == side
    if image is not None:
        model = ef.create_model("vit", "classify-image", image=image, patch=patch, **SMALL)
        assert model.patches.kernel_size == (side, side)  # type: ignore[union-attr]
        assert config.tokens == image[1] * image[2] // side**2 + 1
