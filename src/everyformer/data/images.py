"""Pictures in folders for their classes, or without: decoded once into a row of bytes on disk.

Every picture becomes (channels, height, width) uint8. Palettes become colours, transparency is
dropped, 16-bit greys keep their upper eight bits; one taken sideways is set upright, as its EXIF
says; one of another size is stretched. For super-resolution the small pictures are means over the
areas of the large ones' pixels.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import Task, tasks_that
from everyformer.data.batch import Batch
from everyformer.data.cache import FORMAT, cache_root, cached, digest
from everyformer.data.classes import describe, hold_out
from everyformer.data.config import DRAWN, ELSEWHERE, TABLE, DataConfig
from everyformer.data.config import PICTURES as OF_PICTURES
from everyformer.data.counting import ROWS, counted_loss
from everyformer.data.dataset import ClassedDataset, Spread
from everyformer.data.kind import OF_LABELS, Kind, Request
from everyformer.data.layout import without_notes
from everyformer.data.picture_labels import labelled_pictures, natural_task, tables_among
from everyformer.data.pictures import opened, pillow, pixels_of, survey
from everyformer.data.selection import spread
from everyformer.data.sources import PICTURES, Entry, Source, open_source
from everyformer.data.table import TABLES
from sequence_laws.memory import check_memory


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageDataset(ClassedDataset):
    """Pictures to classify, or to model pixel by pixel.

    For the tasks pixels and super-resolution the targets are the pictures' pixels in raster order
    with the channels of one pixel side by side, (B, height x width x channels); the model shifts
    them itself. Inputs are the same pictures, or for super-resolution small ones.
    """

    pixels: np.ndarray
    """(pictures, channels, height, width) uint8, memory-mapped."""

    def held_out_pictures(self, count: int) -> tuple[Tensor, Tensor | None]:
        rows = self.validation_rows[spread(len(self.validation_rows), count)]
        classes = torch.from_numpy(self.labels[rows]) if self.classes else None
        return torch.from_numpy(np.array(self.pixels[rows])), classes

    @cached_property
    def counting(self) -> float | None:
        """Of intensities in the order of their targets; None where rows are answered."""
        if self.does.answers:
            return None
        train, held_out = (
            [np.moveaxis(picture, 0, -1).ravel() for picture in self.pixels[rows[:ROWS]]]
            for rows in (self.train_rows, self.validation_rows)
        )
        return counted_loss(train, held_out, self.vocabulary)

    def rows(self, chosen: np.ndarray) -> Batch:
        inputs = torch.from_numpy(np.array(self.pixels[chosen]))
        labels = self.answers(chosen)
        if self.does.answers:
            return Batch(inputs, labels)
        targets = inputs.permute(0, 2, 3, 1).flatten(1).long()
        batch = Batch(inputs, targets, labels=labels if self.classes else None)
        if self.source_image is None:
            return batch
        return replace(batch, inputs=shrunk(inputs, self.source_image[1:]), separate=True)


def shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (N, C, H, W) uint8 as means over areas, rounded: (N, C, *size)."""
    package = pillow("shrinking pictures")
    out = torch.empty(*images.shape[:2], *size, dtype=torch.uint8)
    for into, image in zip(out.flatten(0, 1), images.flatten(0, 1).numpy(), strict=True):
        small = package.fromarray(image).resize(size[::-1], package.Resampling.BOX)
        into.copy_(torch.from_numpy(np.array(small)))
    return out


def image_dataset(
    pixels: np.ndarray,
    labels: np.ndarray,
    held_out: np.ndarray,
    config: DataConfig,
    *,
    name: str,
    task: Task,
    classes: tuple[str, ...],
    split: str,
    checksum: str,
) -> ImageDataset:
    """Pictures (N, C, H, W), their labels and flags (N,) of those held out, as a dataset.

    Args:
        labels: class ids (N,), or numbers (N, n) to predict.
        classes: names, where the class is a target or an input; else ().
        split: as in `Dataset`, with COUNTS for the sizes of both parts.
        checksum: hash of the pixels.
    """
    _, channels, height, width = pixels.shape
    counts = f"{int((~held_out).sum()):,} training and {int(held_out.sum()):,} validation pictures"
    answers = task.answers
    source: tuple[int, int, int] | None = None
    facts: list[Any] = [checksum, labels.tobytes(), held_out.tobytes(), classes]
    if task.encodes:
        least = min(height, width)
        side = config.small or max(1, least // 4)
        if side >= least:
            raise ConfigError(
                f"`data.small` is {side}, but the pictures are {width}x{height}: small ones have "
                "fewer pixels on the shorter side; give less, or a greater `data.size`"
            )
        source = (channels, round(height * side / least), round(width * side / least))
        facts.append(source)
        split += f"; each is drawn from {source[2]}x{source[1]}"
    elif config.small is not None:
        raise ConfigError(
            f"`data.small` has no meaning for the task {task.name}: it is for super-resolution"
        )
    return ImageDataset(
        name=name,
        task=task.name,
        kind="images",
        vocabulary=256,
        classes=classes,
        length=height * width * (1 if answers else channels),
        image=(channels, height, width),
        source_image=source,
        numbers=Spread.of(labels[~held_out]) if labels.ndim > 1 else None,
        bytes_per_token=None if answers else 1.0,
        split=split.replace("COUNTS", counts),
        fingerprint=digest(*facts),
        pixels=pixels,
        labels=labels,
        train_rows=np.flatnonzero(~held_out),
        validation_rows=np.flatnonzero(held_out),
    )


def reshaped(pixels: np.ndarray, config: DataConfig) -> np.ndarray:
    """Pictures (N, C, H, W) uint8 in another size or as grey or colours, as the config asks."""
    if config.colour == "grey" and pixels.shape[1] == 3:
        weights = np.array((0.299, 0.587, 0.114))[:, None, None]
        pixels = np.rint((pixels * weights).sum(1, keepdims=True)).astype(np.uint8)
    if config.size and pixels.shape[2:] != (config.size, config.size):
        image, size = pillow("resizing pictures"), (config.size, config.size)
        _check_size(len(pixels) * pixels.shape[1], config.size)
        resized = [
            np.asarray(image.fromarray(plane).resize(size, image.Resampling.BICUBIC))
            for plane in pixels.reshape(-1, *pixels.shape[2:])
        ]
        pixels = np.stack(resized).reshape(*pixels.shape[:2], *size)
    return (
        np.repeat(pixels, 3, axis=1) if config.colour == "rgb" and pixels.shape[1] == 1 else pixels
    )


def _check_size(planes: int, side: int) -> None:
    """Refuse planes of pixels that are to be as large as no memory is."""
    what = f"making pictures of {side:,} x {side:,} pixels"
    check_memory(planes * side**2, what, "choose a smaller `data.size`")


class Pictures(Kind):
    """Pictures in a folder, a zip or a glob, with a table or without."""

    name = "pictures"
    reads = (
        *("part", *OF_PICTURES, *DRAWN),
        *(*OF_LABELS, "header", "separator", "encoding", "split"),
    )

    @classmethod
    def recognises(cls, request: Request) -> bool:
        """True where most files that are no tables or notes are pictures."""
        entries = without_notes(request.source.entries)
        pictures = sum(entry.suffix in PICTURES for entry in entries)
        tables = sum(entry.suffix in TABLES for entry in entries)
        return pictures > (len(entries) - tables) / 2 and pictures > tables

    def check(self) -> None:
        super().check()
        if not tables_among(self.request.source):
            self.refuse((*TABLE, "encoding"), why=ELSEWHERE["header"])

    @cached_property
    def pictures(self) -> list[Entry]:
        """The files that are pictures."""
        return [entry for entry in self.request.source.entries if entry.suffix in PICTURES]

    @cached_property
    def task(self) -> str:
        task = self.request.task_of("pictures")
        if task is None:
            return natural_task(self.request.source, self.config, self.pictures)
        if not task.pictures:
            *able, last = tasks_that("pictures")
            raise DataError(
                f"'{self.config.source}' holds pictures, which the task {task.name} cannot use; "
                f"take {', '.join(able)} or {last}"
            )
        return task.name

    def load(self) -> ImageDataset:
        """The pictures, decoded once into the cache."""
        source, config, task = self.request.source, self.config, self.does
        labelled = labelled_pictures(self, self.pictures)
        layout, labels, classes = labelled.layout, labelled.labels, labelled.classes
        entries = layout.entries
        if len(entries) < 2:
            raise DataError(f"'{source.spec}' has one picture; training and validation need two")
        held_out, how = np.arange(len(entries)) >= len(layout.train), layout.note
        if layout.validation is None:
            groups = labelled.groups
            held_out, how = hold_out(
                labels, classes, config, source.spec, groups, " of the pictures"
            )
        pixels, facts = _decoded(source, entries, config)
        about = describe(labels, held_out, classes, "pictures")
        split = f"{about}{how}: COUNTS{facts['resized']}"
        split += "".join(f"; {note}" for note in labelled.notes)
        return image_dataset(
            pixels,
            labels,
            held_out,
            config,
            name=source.name,
            task=task,
            classes=classes,
            split=split,
            checksum=facts["checksum"],
        )


def read_images(path: str, shapes: Sequence[tuple[int, int, int]], most: int) -> Tensor:
    """The first ``most`` pictures of a file, folder or zip: (n, C, H, W) uint8, none resized.

    Args:
        shapes: (channels, height, width) that they may have; the first picture decides for all.

    Pictures in colour of which the greys are taken are named in a warning.
    """
    with open_source(path) as source:
        entries = [entry for entry in source.entries if entry.suffix in PICTURES][:most]
        if not entries:
            raise DataError(f"'{path}' holds no pictures; give a .png or .jpg, a folder or a zip")
        read: list[np.ndarray] = []
        faded = 0
        pictures = opened(source, entries, "reading pictures")
        for entry, picture in zip(entries, pictures, strict=True):
            fit = [s for s in shapes if s[1:] == (picture.height, picture.width)]
            if not fit:
                known = " or ".join(f"{width}x{height}" for _, height, width in shapes)
                raise DataError(
                    f"the picture {source.where(entry)} is {picture.width}x{picture.height}, but "
                    f"{known} is needed: give pictures of one such size"
                )
            shapes = fit[:1]
            coloured = pixels_of(picture, picture.size, grey=False)
            grey = fit[0][0] == 1
            faded += grey and bool((coloured != coloured[:1]).any())
            read.append(pixels_of(picture, picture.size, grey) if grey else coloured)
    if faded:
        warnings.warn(
            f"{faded} of the {len(read)} pictures in '{path}' {'is' if faded == 1 else 'are'} in "
            "colour, but grey ones are needed: only how bright they are is read",
            stacklevel=2,
        )
    return torch.from_numpy(np.stack(read))


def _decoded(
    source: Source, entries: Sequence[Entry], config: DataConfig
) -> tuple[np.ndarray, dict[str, Any]]:
    """The pixels of ``entries``, from the cache or decoded into it."""
    names = [entry.name for entry in entries]
    key = digest(
        FORMAT, "upright images on white", source.stamp(), names, config.size, config.colour
    )

    def build(folder: Path) -> dict[str, Any]:
        sizes, grey = survey(source, entries)
        height, width = min(sizes, key=lambda size: (-sizes[size], size))
        if config.size:
            _check_size(3, config.size)
            height = width = config.size
        changed = sum(count for size, count in sizes.items() if size != (height, width))
        resized = f"; {changed:,} pictures resized to {width}x{height}" if changed else ""
        grey = grey if config.colour == "auto" else config.colour == "grey"
        checksum = hashlib.blake2b(digest_size=16)
        with (folder / "pixels.bin").open("wb") as file:
            for picture in opened(source, entries, "decoding pictures"):
                raw = pixels_of(picture, (width, height), grey).tobytes()
                checksum.update(raw)
                file.write(raw)
        shape = [len(entries), 1 if grey else 3, height, width]
        return {"shape": shape, "resized": resized, "checksum": checksum.hexdigest()}

    folder, facts = cached(cache_root(config.cache), f"images-{key}", build, source.stamp)
    shape = tuple(facts["shape"])
    return np.memmap(folder / "pixels.bin", np.uint8, mode="r", shape=shape), facts


def channels_first(images: np.ndarray, spec: str) -> np.ndarray:
    """Pictures of an array as (N, C, H, W) uint8 of one or three channels."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim == 4 and images.shape[-1] in (1, 3, 4):
        images = np.moveaxis(images[..., :3], -1, 1)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            f"pictures in '{spec}' must be (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 "
            f"channels, not {images.shape}"
        )
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    low, high = float(images.min()), float(images.max())
    if not (np.isfinite([low, high]).all() and low >= 0 and high <= 255):
        raise DataError(
            f"pictures in '{spec}' go from {low:g} to {high:g}: give 0 to 255, or floats from 0 "
            "to 1"
        )
    scale = 255.0 if images.dtype.kind == "f" and high <= 1 else 1.0
    return np.ascontiguousarray(np.rint(images * scale).astype(np.uint8))
