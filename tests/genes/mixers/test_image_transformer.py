"""Image Transformer: blocks, rectangles, orders, limits, an independent package, streams."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.engines.sparse.attention import sparse_attention
from everyformer.engines.sparse.patterns_grid import Rectangles
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.generation.pixels import draw_images
from helpers import build_mixer, build_model, covering, draw, with_gradients

WIDTH, HEADS = 12, 3
SHAPES = [
    {"grid": (6, 6), "tile": (2, 3), "flange": (1, 2)},
    {"grid": (5, 8), "tile": (2, 3), "flange": (1, 2)},
    {"grid": (7, 5), "tile": (3, 9), "flange": (4, 0)},
    {"grid": (3, 4), "tile": (9, 9), "flange": (0, 0)},
    {"grid": (4, 10), "tile": (1, 4), "flange": (2, 20)},
    {"grid": (1, 9), "tile": (1, 2), "flange": (0, 3)},
    {"grid": (9, 1), "tile": (2, 1), "flange": (1, 0)},
]


def build(**options):
    sizes = {"width": WIDTH, "heads": HEADS, "causal": True, "max_length": 40}
    return build_mixer("image-transformer", **{**sizes, **options})


def literal(grid, tile, flange, causal):
    """The definition in the words of the paper, cell by cell, along the order of the tokens."""
    (rows, columns), (high, wide), (up, side) = grid, tile, flange
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    if causal:
        cells.sort(key=lambda rc: (rc[0] // high, rc[1] // wide, *rc))
    shown = torch.zeros(len(cells), len(cells), dtype=torch.bool)
    for i, (r, c) in enumerate(cells):
        top, left = r // high * high, c // wide * wide
        bottom = top + high if causal else top + high + up
        for j, (r2, c2) in enumerate(cells[: i + 1] if causal else cells):
            shown[i, j] = top - up <= r2 < bottom and left - side <= c2 < left + wide + side
    return shown


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mask_is_the_definition_cell_by_cell(shape, causal):
    plan = SparsePlan.of(Rectangles(**shape, causal=causal))
    cells = math.prod(shape["grid"])
    assert torch.equal(plan.mask(cells)[0], literal(**shape, causal=causal))
    assert SparsePlan.from_text(plan.text) == plan


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_units_equal_the_mask_for_whole_pictures_and_parts_of_them(shape, causal):
    plan = SparsePlan.of(Rectangles(**shape, causal=causal))
    cells = math.prod(shape["grid"])
    for length in {1, 2, cells // 2, cells - 1, cells}:
        inputs = [draw(2, 2, length, 4, seed=n).requires_grad_() for n in range(3)]
        ways = (sparse_attention(*inputs, plan, backend=b) for b in ("dense", "blocked"))
        assert_close(*(with_gradients(y, inputs) for y in ways), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_the_cells_in_block_raster_order_and_needed_until_their_last_query(shape):
    pattern = Rectangles(**shape)
    (_, columns), (high, wide), cells = shape["grid"], shape["tile"], math.prod(shape["grid"])
    row, column = pattern.cells(torch.arange(cells))
    made = sorted(range(cells), key=lambda c: (c // columns // high, c % columns // wide, c))
    assert (row * columns + column).tolist() == made
    assert torch.equal(pattern.tokens(row, column), torch.arange(len(row)))
    mask = SparsePlan.of(pattern).mask(cells)[0]
    for now in range(1, cells):
        needed = pattern.needed(torch.arange(now), torch.tensor(now))
        assert torch.equal(needed, mask[now:, :now].any(0))
    i, j = mask.nonzero().T
    assert int((i - j).max()) == pattern.span


def test_a_token_sees_its_memory_and_what_of_its_block_is_made():
    mask = build(block_size=4, memory_size=3).plan(13).mask(13)[0]
    seen = [[*range(max(0, i // 4 * 4 - 3), i + 1)] for i in range(13)]
    assert [row.nonzero().squeeze(1).tolist() for row in mask] == seen
    both = build(block_size=4, memory_size=3, causal=False).plan(13).mask(13)[0]
    assert both[5].nonzero().squeeze(1).tolist() == [*range(1, 11)]
    assert all(int(row.sum()) <= 4 + 2 * 3 for row in both)


@pytest.mark.parametrize(("size", "length"), [(4, 16), (5, 25), (8, 32)])
def test_blocks_are_those_of_the_local_attention_package(size, length):
    package = pytest.importorskip("local_attention")
    theirs = package.LocalAttention(
        window_size=size, causal=True, look_backward=1, look_forward=0, exact_windowsize=False,
        use_rotary_pos_emb=False, dropout=0.0,
    ).double()  # fmt: skip
    mixer, x = build(block_size=size), draw(2, length, WIDTH)
    q, k, v = mixer.project(x)
    want = mixer.out(theirs(q, k, v).transpose(1, 2).flatten(2))
    assert_close(mixer(x).y, want, rtol=0, atol=1e-12)


WAYS = [
    {},
    {"order": "blocks", "tile": (2, 5)},
    {"order": "blocks", "tile": (2, 5), "output": "mixture", "mixtures": 2},
    {"output": "mixture", "mixtures": 2},
]


@covering(task=["pixels", "super-resolution"], dims=[1, 2], pixels=WAYS)
def test_pictures_are_drawn_as_they_were_scored(pixels, dims, task):
    """Both dimensions, both orders, both outputs, from nothing and from a small picture."""
    if dims == 2 and "order" not in pixels:
        pixels = {**pixels, "order": "blocks", "tile": (1, 99)}
    sizes = {"image": (3, 3, 4), "width": 16, "heads": 2, "layers": 2}
    sizes |= {"flange": (1, 3)} if dims == 2 else {"block_size": 5}
    if task == "super-resolution":
        sizes |= {"source_image": (3, 2, 2), "encoder": "image-transformer"}
        small = {"tile": (1, 2), "flange": (1, 1)} if dims == 2 else {}
        sizes["encoder_options"] = {"dims": dims, **small}
    model = build_model("image-transformer", task, dims=dims, pixels=pixels, **sizes)
    given = torch.randint(256, (2, 3, 3, 4), dtype=torch.uint8)
    small = given[:, :, :2, :2] if task == "super-resolution" else None
    known = model.sequence.steps - 2
    images = draw_images(model, 2, given=given, known=known, small=small)
    tokens, before = (model.sequence.tokens(model.sequence.flatten(t)) for t in (images, given))
    assert torch.equal(tokens[:, :known], before[:, :known])
    shifted = model.sequence.shifted(tokens)
    context = None if small is None else model.encode(small).context
    state, parts = model.init_state(2, dtype=torch.float64), []
    for a, b in itertools.pairwise((0, 4, 5, model.sequence.steps)):
        out = model.decode(shifted[:, a:b], context=context, state=state)
        state = out.state
        parts.append(out.logits)
    targets = model.sequence.flatten(images)
    scored = model(small if small is not None else images, targets=targets)
    assert_close(model.sequence.in_raster(torch.cat(parts, 1)), scored.logits)


def test_shifted_inside_blocks_the_last_token_of_a_block_is_never_read():
    """As tensor2tensor does it: blocks begin with nothing, and 2 x 3 tokens of each are 5 read."""
    pixels = {"order": "blocks", "tile": (2, 3), "shift": "block"}
    sizes = {"image": (3, 2, 2), "width": 12, "heads": 2, "layers": 1}
    model = ef.create_model("image-transformer", "pixels", **sizes, dims=2, pixels=pixels)
    tokens = torch.arange(1, 13)[None]
    assert model.sequence.shifted(tokens).tolist() == [[256, 1, 2, 3, 4, 5, 256, 7, 8, 9, 10, 11]]
    assert model.sequence.shifted(tokens[:, :8]).tolist() == [[256, 1, 2, 3, 4, 5, 256, 7]]
    drawn = draw_images(model, 1)
    assert drawn.shape == (1, 3, 2, 2)
    rows = {**pixels, "tile": (1, 6)}
    model = ef.create_model("image-transformer", "pixels", **sizes, dims=2, pixels=rows)
    assert model.sequence.shifted(tokens)[0, 6:].tolist() == [256, 7, 8, 9, 10, 11]
    with pytest.raises(ConfigError, match="order='blocks'"):
        ef.create_model("image-transformer", "pixels", **sizes, pixels={"shift": "block"})


def test_a_classifier_of_pictures_sees_rectangles_of_patches():
    sizes = {"image": (3, 12, 8), "patch": 2, "classes": 3, "width": 12, "heads": 2, "layers": 1}
    options = {"dims": 2, "tile": (2, 2), "flange": (1, 1), "position": None}
    model = build_model("image-transformer", "classify-image", **sizes, **options)
    seen = []
    model.stack.blocks[0].mixer.register_forward_hook(lambda m, given, out: seen.append(out.y))
    images = draw(1, 3, 12, 8)
    other = images.clone()
    other[:, :, 11, 7] += 1
    for given in (images, other):
        model(given)
    changed = (seen[0] != seen[1]).any(-1)[0].view(6, 4)
    reached = torch.zeros(6, 4, dtype=torch.bool)
    # the last patch is in the tile of rows 4, 5 and in the flange of rows 2, 3
    reached[4:, 2:] = True
    assert torch.equal(changed, reached)


@pytest.mark.parametrize("position", [None, "rope", "alibi"])
def test_hidden_cells_of_a_picture_keep_the_places_of_the_others(position):
    mixer = build(dims=2, tile=(2, 3), flange=(1, 1), causal=False, position=position)
    x, padding_mask = draw(2, 24, WIDTH), draw(2, 24, seed=3) > -0.5
    mask = Mask(padding_mask=padding_mask, grid=(4, 6))
    assert_close(mixer(x, mask=mask).y, mixer.reference(x, mask=mask), rtol=0, atol=1e-12)
    shape = Mask(grid=(4, 6))
    assert_close(mixer(x, mask=shape).y, mixer.reference(x, mask=shape), rtol=0, atol=1e-12)
    everything = Mask(padding_mask=torch.ones_like(padding_mask), grid=(4, 6))
    assert_close(mixer(x, mask=everything).y, mixer(x, mask=shape).y)
    changed = x + 100 * ~padding_mask[..., None]
    assert_close(mixer(changed, mask=mask).y, mixer(x, mask=mask).y)


def test_a_post_norm_layer_is_the_papers():
    """q_a = norm(q + attention), q' = norm(q_a + W_1 relu(W_2 q_a))."""
    sizes = {"image": (3, 2, 2), "width": 12, "heads": 2, "layers": 1}
    model = ef.create_model("image-transformer", "pixels", **sizes).double().eval()
    block, q = model.stack.blocks[0], draw(2, 12, WIDTH)
    a = block.mixer_norm(q + block.mixer(q).y)
    inner = torch.relu(block.feedforward.up(a))
    assert_close(block(q).y, block.feedforward_norm(a + block.feedforward.down(inner)))
    assert isinstance(model.stack.norm, torch.nn.Identity)


@pytest.mark.parametrize(
    ("pixels", "options", "says"),
    [
        ({}, {"tile": (2, 3)}, "raster order"),
        ({"order": "blocks", "tile": (2, 6)}, {"tile": (2, 3)}, r"blocks of \(2, 6\)"),
        ({"order": "blocks", "tile": (2, 6)}, {"grid": (4, 6)}, "4 rows of 12"),
    ],
)
def test_tiles_that_are_not_those_of_the_pictures_are_refused(pixels, options, says):
    sizes = {"image": (3, 4, 4), "width": 12, "heads": 2, "layers": 1, "dims": 2}
    with pytest.raises(GeneError, match=says):
        ef.create_model("image-transformer", "pixels", pixels=pixels, **sizes, **options)


def test_calls_that_fit_no_picture_are_refused():
    with pytest.raises(GeneError, match=r"give `grid=\(rows, columns\)`"):
        build(dims=2)
    both, x = build(dims=2, causal=False), draw(1, 12, WIDTH)
    with pytest.raises(UnsupportedError, match="Mask\\(grid"):
        both(x)
    with pytest.raises(ShapeError, match="12 tokens"):
        both(x, mask=Mask(grid=(3, 5)))
    with pytest.raises(ShapeError, match=r"\(4, 3\)"):
        build(dims=2, causal=False, grid=(4, 3))(x, mask=Mask(grid=(3, 4)))
    with pytest.raises(UnsupportedError, match="documents"):
        both(x, mask=Mask(grid=(3, 4), documents=torch.zeros(1, 12, dtype=torch.long)))
    made = build(dims=2, grid=(3, 4), tile=(2, 2))
    with pytest.raises(UnsupportedError, match="grid"):
        made(x, mask=Mask(grid=(3, 4)))
    with pytest.raises(ShapeError, match=r"\(3, 4\), which has 12 cells, but 13"):
        made(draw(1, 13, WIDTH))
    state = made(x, state=made.init_state(1)).state
    with pytest.raises(ShapeError, match=r"\(3, 4\), which has 12 cells, but 13"):
        made(x[:, :1], state=state)
