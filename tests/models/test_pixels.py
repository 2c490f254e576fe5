"""Pixel models: orders, mixtures, classes, small images; what each value is predicted from."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError
from everyformer.core.tasks import ENLARGE, PIXELS
from everyformer.family import list_members
from everyformer.generation import pixels as drawing
from everyformer.generation.config import Sampling
from everyformer.generation.pixels import draw_images
from everyformer.genes.model_options import PixelOptions
from everyformer.genes.positions.sinusoidal import sinusoid
from everyformer.models.logistics import mixture_losses
from everyformer.models.pixel_sequence import START, PixelSequence
from everyformer.models.pixels import DrawingModel

IMAGE = (3, 3, 4)
WAYS: list[dict[str, Any]] = [
    {},
    {"order": "blocks", "tile": (2, 5)},
    {"output": "mixture", "mixtures": 2},
    {"output": "mixture", "mixtures": 3, "order": "blocks", "tile": (2, 3)},
    {"tables": "channel", "order": "blocks", "tile": (2, 6)},
    {"tables": "channel", "places": "sinusoids"},
    {"output": "mixture", "places": "sinusoids"},
]


def model_of(task: str = PIXELS, member: str = "attention", **options: Any) -> DrawingModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image": IMAGE, "width": 16, "heads": 2, "layers": 2}
    if task == ENLARGE:
        sizes["source_image"] = (3, 2, 2)
    made = ef.create_model(member, task, **{**sizes, **options}).double().eval()
    assert isinstance(made, DrawingModel)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return made


def images_of(count: int, shape: tuple[int, int, int] = IMAGE, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, *shape), generator=generator).to(torch.uint8)


def values_of(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).flatten(1).long()


def test_tokens_of_blocks_follow_the_grid_of_rows_and_columns_times_channels():
    sequence = PixelSequence((2, 2, 3), PixelOptions(order="blocks", tile=(1, 4)))
    assert sequence.tokens(torch.arange(12)[None])[0].tolist() == [0, 1, 2, 3, 4, 5, *range(6, 12)]
    sequence = PixelSequence((2, 2, 3), PixelOptions(order="blocks", tile=(2, 4)))
    made = [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11]
    assert sequence.tokens(torch.arange(12)[None])[0].tolist() == made
    assert sequence.channel(torch.arange(12)).tolist() == [n % 2 for n in made]


def entered(model: DrawingModel, stack: torch.nn.Module, *given: Any, **named: Any) -> Tensor:
    """What enters ``stack``: (L, width) of the first picture."""
    seen: list[Tensor] = []
    handle = stack.register_forward_pre_hook(lambda part, x: seen.append(x[0][0]))
    model(*given, **named)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("options", WAYS)
def test_read_are_the_value_before_the_place_that_is_predicted_and_the_class(options):
    """Written out token by token, with everything learned times 4 = sqrt(width)."""
    model = model_of(
        pixels=options, class_names=("cat", "dog"), scale_embedding=True, position=None
    )
    made, images, label = model.embedding, images_of(1), torch.tensor([1])
    channels, height, width = IMAGE
    whole = options.get("output") == "mixture"
    columns = width if whole else width * channels
    high, wide = options["tile"] if "order" in options else (1, columns)
    blocks = range(height * columns)
    cells = sorted(blocks, key=lambda c: (c // columns // high, c % columns // wide, c))
    values = values_of(images)[0].view(-1, channels if whole else 1)
    expected = []
    for step, cell in enumerate(cells):
        row, column = divmod(cell, columns)
        before = cells[step - 1]
        if whole:
            read = made.values.weight @ (values[before].double() / 127.5 - 1)
        else:
            own = 256 * (before % channels) if "tables" in options else 0
            read = made.values.weight[own + values[before, 0]]
        if step == 0:
            read = made.start if whole else made.values.weight[-1]
        if "places" in options:
            waves = [sinusoid(torch.tensor(at), 8, dtype=torch.float64) for at in (row, column)]
            place = torch.cat(waves) / 4
        elif whole:
            place = made.row.weight[row] + made.column.weight[column]
        else:
            place = made.row.weight[row] + made.column.weight[column // channels]
            place = place + made.channel.weight[column % channels]
        expected.append(4 * (read + place + model.classes.weight[1]))
    got = entered(model, model.stack, images, labels=label)
    torch.testing.assert_close(got, torch.stack(expected))


def test_an_encoder_of_small_images_reads_each_value_at_its_own_place():
    model = model_of(ENLARGE, pixels={"tables": "channel"}, position=None)
    small, made = images_of(1, (3, 2, 2)), model.source_embedding
    expected = []
    for place, value in enumerate(values_of(small)[0]):
        row, column, channel = place // 6, place // 3 % 2, place % 3
        parts = (made.row.weight[row], made.column.weight[column], made.channel.weight[channel])
        expected.append(made.values.weight[256 * channel + value] + sum(parts))
    got = entered(model, model.encoder, small, targets=values_of(images_of(1)))
    torch.testing.assert_close(got, torch.stack(expected))


@pytest.mark.parametrize("options", WAYS)
def test_every_value_is_predicted_from_those_made_before_it_and_no_other(options):
    """Jacobian by value: loss v changes with value u iff u is made before v, along one order."""
    model = model_of(pixels=options)
    sequence, images = model.sequence, images_of(1)
    values = values_of(images)

    def losses(given: Tensor) -> Tensor:
        out = model(sequence.unflatten(given), targets=values)
        if out.each is not None:
            return out.each[0]
        return -out.logits.log_softmax(-1)[0].gather(-1, values[0, :, None])[:, 0]

    before, steps = losses(values), values.shape[1]
    made_at = sequence.inverse.repeat_interleave(sequence.channels if sequence.whole else 1)
    for u in range(0, steps, 5):
        other = values.clone()
        other[0, u] = (other[0, u] + 100) % 256
        changed = (losses(other) - before).abs() > 1e-12
        later = made_at > made_at[u]
        assert torch.equal(changed, later), u


@pytest.mark.parametrize("options", WAYS)
def test_streamed_tokens_have_the_logits_of_the_whole(options):
    model = model_of(pixels=options)
    tokens = model.sequence.tokens(values_of(images_of(2)))
    shifted = model.sequence.shifted(tokens)
    assert (shifted[:, 0] == START).all()
    whole = model.decode(shifted).logits
    state, parts = model.init_state(2, dtype=torch.float64), []
    for a, b in ((0, 5), (5, 6), (6, model.sequence.steps)):
        out = model(shifted[:, a:b], state=state)
        state = out.state
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    in_order = model(images_of(2)).logits
    torch.testing.assert_close(model.sequence.in_raster(whole), in_order)


@pytest.mark.parametrize("order", ["raster", "blocks"])
def test_the_loss_of_a_mixture_is_the_mean_over_pixels_and_channels(order):
    options = {"output": "mixture", "mixtures": 2, "order": order}
    options |= {"tile": (2, 3)} if order == "blocks" else {}
    model, images = model_of(pixels=options), images_of(2)
    values = values_of(images)
    out = model(images, targets=values)
    assert out.logits.shape == (2, 12, 20)
    expected = mixture_losses(out.logits, values.view(2, 12, 3)).flatten(1)
    torch.testing.assert_close(out.each, expected)
    torch.testing.assert_close(out.losses["task"], expected.mean())
    some = values.masked_fill(torch.arange(36) % 2 == 0, -100)
    half = model(images, targets=some)
    torch.testing.assert_close(half.losses["task"], expected[:, 1::2].mean())
    # autocast leaves its parameters in float32
    with torch.autocast("cpu", torch.bfloat16):
        out = model.float()(images, targets=values)
        assert model_of().float()(images).logits.dtype == torch.bfloat16
    assert (out.logits.dtype, out.loss.dtype) == (torch.float32, torch.float32)
    out.loss.backward()


def test_labels_must_fit_the_model():
    model, images = model_of(class_names=("cat", "dog")), images_of(2)
    with pytest.raises(ConfigError, match="one of 2 class ids a row"):
        model(images)
    with pytest.raises(ShapeError, match=r"\(2,\) integers"):
        model(images, labels=torch.tensor([0]))
    with pytest.raises(ConfigError, match="without class_names"):
        model_of()(images, labels=torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match=r"hold 0 to 2, but the 2 classes .* ids 0 to 1"):
        model(images, labels=torch.tensor([0, 2]))
    with pytest.raises(ConfigError, match="hold -1 to -1"):
        draw_images(model, 1, labels=torch.tensor([-1]))


def test_every_small_value_reaches_every_value_that_is_drawn():
    model = model_of(ENLARGE, layers=1, decoder_layers=2)
    assert (len(model.encoder.blocks), len(model.stack.blocks)) == (1, 2)
    small, targets = images_of(1, (3, 2, 2)), values_of(images_of(1))
    before = model(small, targets=targets).logits
    for place in range(small.numel()):
        other = small.flatten().clone()
        other[place] ^= 255
        changed = model(other.view_as(small), targets=targets).logits
        assert ((changed - before).abs().amax(-1) > 1e-12).all()


DRAWN = [
    (PIXELS, {}),
    (PIXELS, {"order": "blocks", "tile": (2, 5)}),
    (PIXELS, {"output": "mixture", "mixtures": 2, "order": "blocks", "tile": (2, 2)}),
    (ENLARGE, {"tables": "channel"}),
    (ENLARGE, {"output": "mixture", "mixtures": 2}),
]


@pytest.mark.parametrize(("task", "options"), DRAWN)
def test_drawn_with_a_state_or_without_images_are_the_same(task, options, monkeypatch):
    model = model_of(task, class_names=("cat", "dog"), pixels=options)
    small = images_of(2, (3, 2, 2)) if task == ENLARGE else None
    given: dict[str, Any] = {"labels": torch.tensor([0, 0, 1, 1]), "small": small}
    drawn = draw_images(model, 4, **given)
    assert (drawn.shape, drawn.dtype) == ((4, *IMAGE), torch.uint8)
    assert len(drawn.flatten(1).unique(dim=0)) == 4
    monkeypatch.setattr(drawing, "initial_state", lambda model, batch: None)
    assert torch.equal(draw_images(model, 4, **given), drawn)


@pytest.mark.parametrize(("task", "options"), DRAWN)
def test_without_temperature_the_likeliest_values_are_drawn(task, options):
    """As the model itself says of the picture that was drawn."""
    model = model_of(task, pixels=options)
    small = images_of(1, (3, 2, 2)) if task == ENLARGE else None
    drawn = draw_images(model, 1, Sampling(temperature=0), small=small)
    logits = model(drawn if small is None else small, targets=values_of(drawn)).logits[0]
    for cell, values in enumerate(drawn[0].permute(1, 2, 0).flatten(0, 1).long()):
        for c, value in enumerate(values):
            if model.sequence.whole:
                chosen = model.distribution(logits[cell, None], values[None, :c])[0]
            else:
                chosen = logits[3 * cell + c]
            assert chosen.argmax() == value


@pytest.mark.dear("streaming is in the laws of every member")
@pytest.mark.parametrize(
    ("member", "task"), [(m.name, t) for t in (PIXELS, ENLARGE) for m in list_members(task=t)]
)
def test_every_member_draws_the_same_images_with_a_state_and_without(member, task, monkeypatch):
    model = model_of(task, member, layers=1, heads=2)
    small = images_of(1, (3, 2, 2)) if task == ENLARGE else None
    drawn = draw_images(model, 2, small=small)
    monkeypatch.setattr(drawing, "initial_state", lambda model, batch: None)
    assert torch.equal(draw_images(model, 2, small=small), drawn)


@pytest.mark.parametrize("options", WAYS)
def test_a_given_beginning_is_kept_and_the_rest_is_drawn(options):
    model, images = model_of(pixels=options), images_of(3)
    sequence = model.sequence
    drawn = draw_images(model, 3, given=images)
    before, after = (sequence.tokens(sequence.flatten(t)) for t in (images, drawn))
    half = sequence.steps // 2
    assert torch.equal(before[:, :half], after[:, :half])
    assert (before[:, half:] != after[:, half:]).any(1).all()
    assert torch.equal(draw_images(model, 3, given=images, known=sequence.steps), images)


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: model_of(pixels={"tile": (0, 3)}), ConfigError, "pixels.tile.* must be at least 1"),
    (lambda: model_of(pixels={"mixtures": 0}), ConfigError, "pixels.mixtures` must be at least 1"),
    (lambda: model_of(pixels={"order": "block"}), ConfigError, "did you mean 'blocks'"),
    (lambda: model_of(pixels={"output": "mixture"}, label_smoothing=0.1), GeneError,
     "parameters of a mixture"),
    (lambda: model_of(pixels={"output": "mixture"}, loss_chunk=4), GeneError, "loss_chunk=4"),
    (lambda: ef.create_model("attention", ENLARGE, image=IMAGE), GeneError, "needs source_image"),
    (lambda: model_of()(images_of(1, (3, 4, 4))), ShapeError, r"\(batch, 3, 3, 4\), not"),
    (lambda: model_of(ENLARGE)(images_of(1, (3, 2, 2))), ShapeError, "needs targets"),
    (lambda: model_of()(images_of(1) / 255), ShapeError, "must be uint8, .* not torch.float32"),
    (lambda: model_of()(images_of(1), targets=images_of(1)), ShapeError,
     r"\(1, 36\), .* not \(1, 3, 3, 4\)"),
    (lambda: model_of(ENLARGE)(images_of(2, (3, 2, 2)), targets=values_of(images_of(1))),
     ShapeError, r"\(2, 36\), .* not \(1, 36\)"),
    (lambda: model_of()(images_of(1), targets=values_of(images_of(1)) + 256), ShapeError,
     "an intensity is 0 to 255"),
    (lambda: model_of(image=(-3, 3, 4)), ConfigError, r"image\[0\]` must be at least 1"),
    (lambda: model_of(ENLARGE, source_image=(3, 0, 2)), ConfigError,
     r"source_image\[1\]` must be at least 1"),
    (lambda: model_of(ENLARGE)(images_of(1), targets=values_of(images_of(1))), ShapeError,
     r"\(batch, 3, 2, 2\), not"),
    (lambda: draw_images(model_of(), 2, given=images_of(1)), ShapeError, "but 1 are given"),
    (lambda: draw_images(model_of(), 2, known=3), ConfigError, "no images"),
    (lambda: draw_images(model_of(), 1, given=images_of(1), known=99), ConfigError,
     "99 tokens .* has 36"),
    (lambda: draw_images(model_of(ENLARGE), 1), ConfigError, "give the small images"),
    (lambda: draw_images(model_of(), 1, small=images_of(1)), ConfigError, "enlarges none"),
    (lambda: draw_images(model_of(ENLARGE), 3, small=images_of(2, (3, 2, 2))), ConfigError,
     "3 images .* 2 small ones"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_wrong_calls_say_what_to_do(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_mixture_over_colours_is_a_distribution_over_whole_pixels():
    """Two channels, all 65,536 pixels: the probabilities of the model sum to one."""
    model = model_of(image=(2, 1, 1), pixels={"output": "mixture", "mixtures": 3})
    every = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    logits = model(torch.zeros(1, 2, 1, 1, dtype=torch.uint8)).logits[0, 0]
    total = mixture_losses(logits.expand(len(every), -1), every).sum(-1).neg().exp().sum()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_colours_of_a_mixture_are_drawn_as_it_says():
    """One pixel of three channels: frequencies of the first two, against the model's own."""
    model = model_of(image=(3, 1, 1), pixels={"output": "mixture", "mixtures": 2})
    model.head.weight.data.mul_(0.5)
    logits = model(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).logits[:, 0]
    drawn = draw_images(model, 3000).flatten(1).long()
    for known in range(2):
        expected = torch.stack(
            [model.distribution(logits, row[None, :known]).exp()[0] for row in drawn[:200]]
        ).mean(0)
        got = torch.bincount(drawn[:, known], minlength=256) / len(drawn)
        bins = [slice(16 * n, 16 * n + 16) for n in range(16)]
        for part in bins:
            assert abs(got[part].sum() - expected[part].sum()) < 0.05


def test_even_weights_have_unit_scaling_by_a_fifth() -> None:
    """U(-a, a) with a = 0.2 sqrt(3 / inputs), of variance 0.04 / inputs; tables N(0, 1 / width)."""
    torch.manual_seed(0)
    model = ef.create_model(
        "image-transformer", PIXELS, image=(3, 8, 8), width=96, heads=4, layers=2,
        init="image-transformer",
    )  # fmt: skip
    (block, _) = model.stack.blocks
    weights = block.state_dict() | {"head.weight": model.head.weight.detach()}
    tried = 0
    for name, weight in weights.items():
        if weight.dim() == 2:
            inputs = weight.shape[1]
            assert float(weight.abs().max()) <= 0.2 * math.sqrt(3 / inputs)
            assert math.isclose(float(weight.var()) * inputs, 0.04, rel_tol=0.05)
            tried += 1
        elif "bias" in name:
            assert not weight.any()
    assert tried == 5
    table = model.embedding.values.weight.detach()
    assert math.isclose(float(table.var()) * 96, 1, rel_tol=0.05)
