"""Pictures pixel by pixel: what a block remembers, stretches against rectangles, and the strided
and fixed sets of the Sparse Transformer on pictures of columns and on text."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.generation.pixels import draw_images
from everyformer.genes.mixers.sparse_transformer import SparseTransformer
from everyformer.lab.experiments.figures import Lines, Matrices
from everyformer.lab.experiments.measures import held_out, load, model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_model
from sequence_laws.flops import count_flops

ROWS, COLUMNS, LEVELS, SAME = 12, 16, 8, 0.9
"""pictures of columns: a cell has the level of the one above, but for one in ten"""
MEMORIES = (0, 8, 16, 56)
"""l_m of blocks of a row of 8 digits' pixels"""
SHAPES: dict[str, dict[str, Any]] = {
    "1-D": {"block_size": 4, "memory_size": 12},
    "2-D": {"dims": 2, "flange": (2, 1), "pixels": {"order": "blocks", "tile": (2, 2)}},
}
"""both read at most 16 cells a query"""
FALL, AHEAD = 0.1, 0.5


def columns(count: int, generator: torch.Generator) -> Tensor:
    """Pictures (count, 1, 12, 16) uint8 whose columns do not know of each other."""
    fresh = torch.randint(LEVELS, (count, ROWS, COLUMNS), generator=generator)
    same = torch.rand(count, ROWS, COLUMNS, generator=generator) < SAME
    for row in range(1, ROWS):
        fresh[:, row] = torch.where(same[:, row], fresh[:, row - 1], fresh[:, row])
    return (fresh * (255 // (LEVELS - 1)))[:, None].to(torch.uint8)


def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight of `columns`, and the values of their pixels."""
    images = columns(8, generator)
    return images, images.flatten(1).long()


def least_bits() -> float:
    """Bits/dim of `columns` for who knows how they are made."""
    same, other = SAME + (1 - SAME) / LEVELS, (1 - SAME) / LEVELS
    below = -same * math.log2(same) - (LEVELS - 1) * other * math.log2(other)
    return (math.log2(LEVELS) + (ROWS - 1) * below) / ROWS


@torch.no_grad()
def bits(model: nn.Module, images: Tensor) -> float:
    """Bits/dim of pictures (N, 1, H, W)."""
    loss: Tensor = model(images, targets=images.flatten(1).long()).loss
    return loss.item() / math.log(2)


@experiment(
    "bits/dim on digits fall by over 0.1 from blocks without a memory to blocks with one, of a "
    "row or more; and of 16 cells a query, rectangles need at least 0.5 bits/dim less than "
    "stretches of the raster where pictures are made of columns",
    members=("image-transformer",),
    minutes=9,
)
def picture_memory(study: Study) -> Outcome:
    """Two layers; digits with blocks of a row, then 16 cells a query in both shapes."""
    digits = load("pixels", source="digits")
    validation = next(iter(digits.validation_batches(180))).inputs
    test = columns(200, torch.Generator().manual_seed(99))
    by_size = "digits, l_m = {}"
    arms: dict[str, tuple[dict[str, Any], Tensor]] = {
        by_size.format(size): ({"block_size": 8, "memory_size": size}, validation)
        for size in MEMORIES
    }
    for kind, images in (("digits", validation), ("columns", test)):
        for shape, options in SHAPES.items():
            arms[f"{kind}, 16 cells, {shape}"] = options, images
    models: dict[str, Model] = {}
    for name, (options, images) in study.each(arms.items()):
        chosen = options | {"pixels": {"places": "learned"} | options.get("pixels", {})}
        models[name] = create_model(
            "image-transformer", "pixels", width=64, layers=2, heads=4, dropout=0.0,
            scale_embedding=False, image=tuple(images.shape[1:]), **chosen,
        )  # fmt: skip
        study.fit(models[name], (digits, 16) if images is validation else drawn, 800)
        study.keep(name, bits(models[name], images), "{:.3f} bits/dim")
    fallen = study.series(by_size, MEMORIES)
    sizes = ", ".join(f"{size}: {value:.3f}" for size, value in zip(MEMORIES, fallen, strict=True))
    sentence = (
        f"Bits/dim on 8x8 digits by l_m, {sizes}. At 16 cells a query: pictures of columns (least "
        f"possible {least_bits():.3f}) 1-D [columns, 16 cells, 1-D|.3f], 2-D "
        "[columns, 16 cells, 2-D|.3f]; digits 1-D [digits, 16 cells, 1-D|.3f], 2-D "
        "[digits, 16 cells, 2-D|.3f]."
    )
    one, two = study.series("columns, 16 cells, {}", SHAPES)
    holds = fallen[0] - max(fallen[1:]) > FALL and one - two > AHEAD
    line = "1-D, blocks of a row"
    cells = {f"{shape}, 16 cells a query": f"digits, 16 cells, {shape}" for shape in SHAPES}
    memory = Lines(
        {line: fallen, **{label: [study.mean(name)] for label, name in cells.items()}},
        {line: MEMORIES, **dict.fromkeys(cells, (12.0,))},
        ("l_m (pixels)", "bits/dim on held-out digits"),
    )
    shown = by_size.format(MEMORIES[0]), by_size.format(MEMORIES[-1]), "digits, 16 cells, 2-D"
    completed = completions({name: models[name] for name in shown}, validation[::18][:10])
    return study.outcome(holds, sentence, memory=memory, completed=Matrices(completed))


def completions(models: dict[str, Model], digits: Tensor) -> dict[str, Tensor]:
    """Held-out digits in a row, and in others what is drawn below their upper halves."""
    rows = {"digits": digits}
    for name, model in models.items():
        drawn_below = draw_images(model, len(digits), given=digits, show=False)
        rows[name.removeprefix("digits, ")] = drawn_below
    lines = [torch.cat([*images[:, 0]], 1) for images in rows.values()]
    return {"; ".join(rows): torch.cat(lines).float()}


PATTERNS = ("strided", "fixed")
LENGTH, STRIDE, SUMMARIES = 512, 64, 16
"""of text: a quarter of each stride are summaries, as in the paper (128 and 32)"""
SHORT, LONG = 2**14, 2**16
"""lengths whose units are as full as each other: strides of 128 and 256"""
PICTURES_AHEAD, TEXT_AHEAD = 0.5, 0.02


@experiment(
    "strided sets need at least 0.5 bits/dim less than fixed ones on pictures of columns, "
    "fixed ones at least 0.02 bits a byte less than strided ones on text, and the operations "
    "of both grow like L^1.5 (within 0.1)",
    members=("sparse-transformer",),
    minutes=10,
)
def factorised(study: Study) -> Outcome:
    """Both sets in one softmax; strides of a row of the picture, and of 64 bytes for the text.

    Weights start by each part's rule: the published start is for deep networks, and these are
    small and learn for minutes.
    """
    text = load("lm", source="stdlib", length=LENGTH)
    test = columns(200, torch.Generator().manual_seed(99))
    for _ in study.seeds():
        for kind, pattern in study.arms(itertools.product(("pictures", "text"), PATTERNS)):
            name, pictures = f"{kind}, {pattern}", kind == "pictures"
            sizes: dict[str, Any] = {"width": 64, "heads": 4, "init": "member", "pattern": pattern}
            if pattern == "fixed":
                sizes["columns"] = 2 if pictures else SUMMARIES
            if pictures:
                model = create_model(
                    "sparse-transformer", "pixels", layers=2, image=(1, ROWS, COLUMNS), **sizes
                )
                study.fit(model, drawn, 300, arm=name)
                study.keep(name, bits(model, test), "{:.3f} bits/dim")
            else:
                model = model_for(text, "sparse-transformer", layers=3, stride=STRIDE, **sizes)
                study.fit(model, (text, 2), 1000, arm=name)
                share = held_out(model, text, "bits_per_byte", limit=64)
                study.keep(name, share, "{:.3f} bits a byte")
    for pattern in PATTERNS:
        study.numbers[f"exponent, {pattern}"] = [exponent(pattern)]
    sentence = (
        f"Pictures of columns (least possible {least_bits():.3f} bits/dim): strided "
        "[pictures, strided|.3f], fixed [pictures, fixed|.3f]. Python's source, "
        f"{LENGTH} bytes at a time: strided [text, strided|.3f] bits a byte, fixed "
        f"[text, fixed|.3f]. Counted operations of attention from {SHORT:,} to {LONG:,} tokens "
        "grow like L^[exponent, strided|.2f] (strided) and L^[exponent, fixed|.2f] (fixed)."
    )
    figure = [
        Lines({p: study.losses[f"{kind}, {p}"] for p in PATTERNS}, smooth=20, title=kind)
        for kind in ("pictures", "text")
    ]
    m = study.means()
    holds = (
        m["pictures, fixed"] - m["pictures, strided"] > PICTURES_AHEAD
        and m["text, strided"] - m["text, fixed"] > TEXT_AHEAD
        and all(abs(m[f"exponent, {pattern}"] - 1.5) < 0.1 for pattern in PATTERNS)
    )
    return study.outcome(holds, sentence, loss=figure)


def exponent(pattern: str) -> float:
    """The power of the length by which operations between queries, keys and values grow."""

    def operations(length: int) -> int:
        options = {"pattern": pattern, "backend": "blocked"}
        mixer = SparseTransformer(width=8, causal=True, max_length=length, options=options)
        projections = 2 * length * 8 * 8 * 4
        return count_flops(lambda: mixer(torch.zeros(1, length, 8))) - projections

    return math.log(operations(LONG) / operations(SHORT)) / math.log(LONG / SHORT)
