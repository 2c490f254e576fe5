"""No option claims what there is not: a hundred thousand million of anything is refused before it
is claimed, or comes to no more than what there is of it."""

import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from everyformer.core.bounds import When, bounds_of
from everyformer.core.config import Options, field_types, from_dict
from everyformer.core.errors import EveryformerError
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.family import info, list_members
from everyformer.genes import GENES
from everyformer.stores.runs import train_run
from everyformer.training.spec import RunSpec, build_run, preset
from option_walk import all_options, leaves, numbers, shaped

HUGE = 10**11
GIB = 1 << 30
PATIENCE = 60
"""seconds after which something is taken to go on for ever; a case takes a tenth of one"""
SMALL = {
    "model": {"width": 16, "heads": 2, "layers": 2},
    "data": {"length": 16},
    "training": {"steps": 1, "batch": 2, "evaluate_sequences": 2, "threads": 1},
}
PICTURES: dict[str, Any] = {"task": "classify-image", "data": {"source": "digits"}}
BESIDE: Mapping[str, dict[str, Any]] = {
    "Architecture.patch": PICTURES,
    "Architecture.head_hidden": PICTURES,
    "AxialOptions.dims": {"position": {"combine": "concat", "shape": (4, 4)}},
    "BigBirdOptions.dense_blocks": {"task": "mlm"},
    "BigBirdOptions.extra_tokens": {"task": "mlm"},
    "CalmOptions.longest": {"depth": {"decay": 4.0}},
    "DataConfig.size": PICTURES,
    "DataConfig.small": PICTURES | {"task": "super-resolution"},
    "DataConfig.symbols": {"data": {"source": "copy"}},
    "ImageTransformerOptions.flange": PICTURES | {"task": "pixels"},
    "ImageTransformerOptions.grid": PICTURES | {"task": "pixels"},
    "ImageTransformerOptions.tile": PICTURES | {"task": "pixels"},
    "PixelOptions.mixtures": PICTURES | {"task": "pixels"},
    "PixelOptions.tile": PICTURES | {"task": "pixels"},
    "KnnRunOptions.context": {"retrieval": {"tune": HUGE * 9}},
    "LinformerOptions.k": {"model": {"max_length": HUGE}, "task": "mlm"},
    "RopeScaling.original_length": {"position": {"scaling": {"kind": "dynamic", "factor": 2.0}}},
    "SinkhornOptions.sortcut": {"task": "mlm"},
    "SparseTransformerOptions.columns": {"mixer": {"stride": HUGE}},
    "SparseTransformerOptions.groups": {"mixer": {"stride": HUGE, "columns": HUGE}},
    "SummaryOptions.every": {"task": "mlm", "mixer": {"name": "longformer"}},
    "T5RelativeOptions.buckets": {"position": {"max_distance": HUGE * 9}},
    "TrainingConfig.warmup_steps": {"training": {"schedule": "noam"}},
}
"""what else must be chosen for an option to be read"""
ELSEWHERE = {
    "TrainingConfig.steps": "they are made one after the other, and their number is shown",
    "DataConfig.tokens": "batches of parallel text, which hold at most what there is",
    "DataConfig.context": "read of episodes",
    "DecisionOptions": "of episodes",
    "EpisodeShape": "what the data has",
    "ModelConfig": "Architecture, and what the data has",
    "ExitOptions": "a base",
    "StoreOptions": "a base",
    "MixtureOptions": "a base",
    "KnnOptions": "stores refuse more than they hold",
    "Grid": "stores refuse more than they hold",
    "cli": "tests/cli/test_bad_inputs.py",
    "generation": "tests/generation",
    "lab": "trainings and points of a benchmark, each of its own, and counts of what was tried",
    "stores": "stores refuse more than they hold",
    "Space": "what was recorded says its sizes",
}
"""options, classes and packages that are no part of a training of text or pictures, or no sizes"""


def variants() -> Iterator[tuple[str, dict[str, str]]]:
    """Members, and plain attention with each alternative of another gene."""
    yield from ((member.name, {}) for member in list_members())
    for gene, record in GENES.items():
        if gene not in ("mixer", "encoder", "cross"):
            yield from (("attention", {gene: name}) for name in record.alternatives.names())


def parts(
    options: Options, path: tuple[str, ...] = ()
) -> Iterator[tuple[Options, tuple[str, ...]]]:
    """Every group of options in a description, and the names that lead to it."""
    yield options, path
    for name in field_types(type(options)):
        value = getattr(options, name)
        if name == "genes":
            for gene, choice in value.items():
                yield from parts(choice.options, (*path, gene))
        elif isinstance(value, Options):
            yield from parts(value, (*path, name))


def homes() -> dict[type, tuple[str, dict[str, str], tuple[str, ...]]]:
    """Where each class of options first stands: the member, chosen genes, and the names."""
    known: dict[type, tuple[str, dict[str, str], tuple[str, ...]]] = {}
    for member, genes in variants():
        for options, path in parts(preset(member, None, **genes)):
            known.setdefault(type(options), (member, genes, path))
    return known


def is_huge(kind: Any) -> bool:
    """Whether an option takes any whole number, but for seeds, of which any is as good."""
    bounds = bounds_of(kind)
    whole = any(get_args(leaf)[:1] == (int,) for leaf in leaves(kind))
    return whole and bounds is not None and bounds.high > HUGE and bounds.high != 2**63 - 1


def conditions(kind: Any) -> dict[str, Any]:
    """Options beside which this one is read, as its type has them."""
    marks = (mark for part in (kind, *get_args(kind)) for mark in get_args(part))
    return {mark.name: mark.values[0] for mark in marks if isinstance(mark, When)}


HOMES = homes()
SIZES = [one for one in numbers(all_options()) if is_huge(one[2])]


def is_elsewhere(cls: type, name: str) -> bool:
    return bool(
        {cls.__module__.split(".")[1], cls.__name__, f"{cls.__name__}.{name}"} & {*ELSEWHERE}
    )


CASES = [
    pytest.param(cls, name, kind, id=f"{cls.__name__}.{name}")
    for cls, name, kind in SIZES
    if not is_elsewhere(cls, name)
]


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = merged(found[key], value) if both else value
    return found


def nested(path: tuple[str, ...], values: Any) -> Any:
    return {path[0]: nested(path[1:], values)} if path else values


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("huge")
    (folder / "text.txt").write_text("a warm tree and the quick brown fox sleep " * 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERYFORMER_CACHE", str(folder / "cache"))
        yield folder / "text.txt"


@pytest.fixture
def bounded() -> Iterator[None]:
    """A gigabyte beside what this process holds, and not for ever."""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits of memory are Linux's")

    def stop(number: int, frame: object) -> None:
        raise AssertionError("it goes on for ever")

    memory, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GIB, memory[1]))
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, memory)


@cache
def data(config: DataConfig, task: str | None) -> Any:
    return load_dataset(config, task)


def test_every_size_is_tried_where_it_is_chosen() -> None:
    assert [case.id for case in CASES if case.values[0] not in HOMES] == []
    tried = {case.id for case in CASES}
    assert tried >= set(BESIDE)
    assert {"MemorizingOptions.slots", "Architecture.width", "KnnRunOptions.k"} <= tried


@pytest.mark.parametrize(("cls", "name", "kind"), CASES)
def test_what_is_huge_is_refused_before_it_is_claimed_or_costs_no_more(
    cls, name, kind, text, bounded
):
    member, genes, path = HOMES[cls]
    bounds = bounds_of(kind)
    value = shaped(kind, HUGE + (bounds.parity == "odd"))
    chosen = nested(path, conditions(kind) | {name: value})
    own = merged({"data": {"source": str(text)}}, BESIDE.get(f"{cls.__name__}.{name}", {}))
    own.setdefault("task", info(member).tasks[0])
    try:
        spec = preset(member, own["task"], **genes)
        spec = from_dict(RunSpec, merged(SMALL, own, chosen), "", spec)
        dataset = data(spec.data, spec.task)
        train_run(
            build_run(spec, dataset), dataset, spec.training, show=False, say=lambda line: None
        )
    except EveryformerError as error:
        said = str(error)
        assert "at once were requested" not in said, "it was claimed"
        assert name in said or "of memory, but" in said or "000,000" in said
