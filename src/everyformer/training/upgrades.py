"""Upgrades of what earlier versions saved, to today's form in small named steps.

Whoever changes what a saved file holds raises `everyformer.system.sealed.VERSION`, adds a step here
and, under tests/formats, files that were saved before. `read_saved` is the one way to the plain
values of a model, a run or a checkpoint, `saved_tensors` the one way to what is saved by the names
of a model's tensors. Weights tell by their names and shapes what they are, for a run that goes on
keeps its older checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from everyformer.blocks.options import BlockOptions
from everyformer.core.config import field_defaults, field_types, from_dict, to_dict, unread
from everyformer.core.registry import Registry
from everyformer.engines.sparse.random_blocks import shortlist
from everyformer.family import info
from everyformer.genes.memory import MEMORIES
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.bigbird import BigBird
from everyformer.genes.mixers.gmlp import GMLPOptions
from everyformer.genes.positions import POSITIONS
from everyformer.models.config import ModelConfig
from everyformer.models.options import PixelOptions, SummaryOptions
from everyformer.system.plain import to_json
from everyformer.system.sealed import read_json
from everyformer.training.config import TrainingConfig
from everyformer.training.spec import described
from everyformer.training.storage import read_tensors

MODEL_FORMAT = "everyformer-model"
RUN_FORMAT = "everyformer-run"
CHECKPOINT_FORMAT = "everyformer-checkpoint"

Table = dict[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Upgrade:
    """One change of what is saved, and how older files are read."""

    name: str
    before: int
    """files of an earlier version than this are meant"""
    values: Callable[[Table], None] | None = None
    """changes in place what a JSON file of any format holds"""
    tensors: Callable[[Tensors, nn.Module], Tensors] | None = None
    """what a file of tensors holds as the model names and shapes it: its weights, their averages,
    or the optimiser's ``key:name``"""


def read_saved(path: Path, expected_format: str) -> Table:
    """What `write_json` wrote, now or in an earlier version, in today's form.

    Raises:
        CheckpointError: as `everyformer.system.sealed.read_json` does.
    """
    values = read_json(path, expected_format)
    for upgrade in UPGRADES:
        if upgrade.values is not None and values.get("version", 1) < upgrade.before:
            upgrade.values(values)
    return values


def saved_tensors(path: Path, model: nn.Module) -> Tensors:
    """The tensors in ``path`` by the names that ``model`` has for them today.

    Raises:
        DamagedError: it cannot be read.
    """
    tensors = read_tensors(path)
    for upgrade in UPGRADES:
        if upgrade.tensors is not None:
            tensors = upgrade.tensors(tensors, model)
    return tensors


def _tables_of_pixels(tensors: Tensors, model: nn.Module) -> Tensors:
    """The four tables of a pixel model moved into its embedding."""
    expected = model.state_dict().keys()
    moved = {"embedding.weight": "embedding.values.weight"}
    moved |= {f"{name}.weight": f"embedding.{name}.weight" for name in ("row", "column", "channel")}
    renamed = {}
    for full, tensor in tensors.items():
        key, colon, name = full.rpartition(":")
        new = moved.get(name, name)
        renamed[key + colon + (new if name not in expected and new in expected else name)] = tensor
    return renamed


def _random_blocks(tensors: Tensors, model: nn.Module) -> Tensors:
    """BigBird's orders of all blocks without those that no length takes."""
    out = dict(tensors)
    for path, module in model.named_modules():
        if not isinstance(module, BigBird) or module.order is None:
            continue
        order, (heads, blocks, _) = out.get(f"{path}.order"), module.order.shape
        if order is None or order.shape == module.order.shape:
            continue
        if module.options.random == "uniform" and order.shape == (heads, blocks, blocks):
            out[f"{path}.order"] = shortlist(order, module.options.random_blocks, module.rules)
    return out


def _rows_counted(values: Table) -> None:
    """FLOPs were counted by the row; they are counted anew, by the position."""
    values.pop("flops_per_row", None)


def _channels_of_gmlp(values: Table) -> None:
    """`mlp_ratio` was called as what it replaces in other members' blocks."""
    for options, table in _tables(values):
        if issubclass(options, GMLPOptions) and "expansion" in table:
            table["mlp_ratio"] = table.pop("expansion")


def _unread_options(values: Table) -> None:
    """Options that their form does not read were taken and had no effect: back to the default."""
    for model in (values.get("config"), values.get("model")):
        if isinstance(model, dict) and model.get("schedule"):
            before = to_dict((model["mixer_options"], model["schedule"]))
            _unread_by_layer(model)
            changed = before != [model["mixer_options"], model["schedule"]]
            if changed and isinstance(values.get("run"), dict):
                _restated(values["run"], model)
    for options, table in _tables(values, layered=False):
        _read_alone(options, table)


def _scale_of_embeddings(values: Table) -> None:
    """Where nothing was said, embeddings were scaled beside sinusoidal positions alone."""
    if isinstance(values.get("options"), dict):
        _scale_in_comparison(values["options"])
    model = values.get("config", values.get("model"))
    if not isinstance(model, dict) or "position" not in model:
        return
    waves = model["position"] == "sinusoidal"
    run = values.get("run")
    for table in (model, run["model"] if isinstance(run, dict) else model):
        if table.get("scale_embedding") is None:
            table["scale_embedding"] = waves


def _scale_in_comparison(options: Table) -> None:
    """The same said of every member that does not say it."""
    model, given = options["model"], list(options.get("options", ()))
    if model.get("scale_embedding") is not None:
        return
    own = dict(option.partition("=")[::2] for option in given)
    for member in options.get("members", ()):
        genes = info(member).genes
        position = model.get("position", "member")
        position = genes["position"].name if position == "member" else position
        position = own.get(f"{member}.position", position)
        if f"{member}.scale_embedding" not in own and "scale_embedding" not in genes.model:
            given.append(f"{member}.scale_embedding={str(position == 'sinusoidal').lower()}")
    options["options"] = given


ROLES = {"mixer": "mixer", "encoder": "encoder_mixer", "cross": "cross_mixer"}
"""gene -> how its name was called"""


def _genes_in_one_table(values: Table) -> None:
    """Genes had fields of their own; options of a run's position stood under ``place``; jobs of a
    comparison held models."""
    options, run = values.get("options"), values.get("run")
    if isinstance(options, dict):
        for gene in ("position", "memory"):
            name = options["model"].pop(gene, None)
            own = name is None and gene == "memory"
            options[gene] = {"name": "member" if own else name}
        wiring = _wiring_of(options["model"])
        options["wiring"] = {"name": "member"} if wiring["name"] == "pre" else wiring
    model = values.get("config", values.get("model"))
    if not isinstance(model, dict) or "position" not in model:
        return
    if isinstance(run, dict):
        mixer = _own_mixer(run) if model["mixer"] == "by-head" else model["mixer"]
        names = {
            "position": run["model"].pop("position"),
            "memory": run["model"].pop("memory", None),
        }
        tables = {"position": run.pop("place"), "memory": run.pop("memory", {})}
        run |= {"mixer": {"name": mixer, **run["mixer"]}, "wiring": _wiring_of(run["model"])}
        run |= {gene: {"name": names[gene], **tables[gene]} for gene in names}
        for name in ("out", "resume"):
            run.pop(name, None)
    model["wiring"] = _wiring_of(model)
    for gene in ("mixer", "encoder", "cross", "position", "memory"):
        usual = "attention" if gene == "cross" else None
        name = model.pop(ROLES.get(gene, gene), usual)
        model[gene] = {"name": name, **model.pop(f"{gene}_options", {})}
    if values.get("format") == "everyformer-job":
        spec = to_dict(described(from_dict(ModelConfig, values.pop("model"))))
        given = {name: values.pop(name) for name in ("task", "data", "training")}
        values["run"] = {**spec, **given}


def _one_budget(values: Table) -> None:
    """A number of steps stood, unread, beside the budget that took its place."""
    for part in (values, values.get("run"), values.get("options")):
        training = part.get("training") if isinstance(part, dict) else None
        if isinstance(training, dict) and any(
            training.get(name) is not None for name in TrainingConfig.one_of[1:]
        ):
            training["steps"] = None


def _wiring_of(model: Table) -> Table:
    block = model.get("block", {})
    name, output = block.pop("wiring", "pre"), block.pop("reversible_output", "concat")
    return {"name": name, **({"reversible_output": output} if name == "reversible" else {})}


def _own_mixer(run: Table) -> str:
    return str(info(run["member"]).genes["mixer"].name)


def _read_alone(options: type, table: Table) -> None:
    while idle := [name for name, _ in unread(options, table)]:
        table.update({name: to_dict(field_defaults(options)[name]) for name in idle})


def _unread_by_layer(model: Table) -> None:
    """The same where layers differ: what some read and others do not has its default in these."""
    own, schedule = model["mixer_options"], model["schedule"]
    given: list[Table] = []
    read: list[Table] = []
    for chosen in zip(*schedule.values(), strict=True):
        options = own | dict(zip(schedule, chosen, strict=True))
        cls: Any = MIXERS.get(options.pop("mixer", model["mixer"]))
        given.append({name: options[name] for name in field_types(cls.Options) if name in options})
        read.append(dict(given[-1]))
        _read_alone(cls.Options, read[-1])
    for name in {
        name for was, now in zip(given, read, strict=True) for name in was if was[name] != now[name]
    }:
        # a layer of another mixer does not have it
        values = [table[name] for table in read if name in table]
        same = all(value == values[0] for value in values)
        own.pop(name, None)
        schedule.pop(name, None)
        if same:
            own[name] = values[0]
        else:
            schedule[name] = [table.get(name, values[0]) for table in read]


def _restated(run: Table, model: Table) -> None:
    """What the flags of a run said of its layers, as its upgraded model has it."""
    table, own, schedule = run["mixer"], model["mixer_options"], model["schedule"]
    cls: Any = MIXERS.get(model["mixer"])
    for name in table.keys() & field_types(cls.Options).keys():
        table[name] = own.get(name, to_dict(field_defaults(cls.Options)[name]))
    run["schedule"] = [
        f"{name}={','.join(to_json(value) for value in values)}"
        for name, values in schedule.items()
    ]


def _tables(values: Table, *, layered: bool = True) -> Iterator[tuple[type, Table]]:
    """Every table of options in a file, with its class.

    Args:
        layered: also those of a mixer whose layers differ, which hold for none by itself.
    """
    for model in (values.get("config"), values.get("model")):
        if isinstance(model, dict) and "mixer_options" in model:
            yield from _tables_of_model(model, layered)
    run, comparison = values.get("run"), values.get("options")
    if isinstance(comparison, dict):
        yield from _tables_of_shape(comparison["model"])
    if isinstance(run, dict):
        shape, mixer = run["model"], str(values["model"]["mixer"])
        yield from _tables_of_shape(shape)
        mixer = _own_mixer(run) if mixer == "by-head" else mixer
        if layered or not values["model"]["schedule"]:
            yield from _tables_of_gene(MIXERS, mixer, run["mixer"])
        yield from _tables_of_gene(POSITIONS, shape["position"], run["place"])
        yield from _tables_of_gene(MEMORIES, shape.get("memory"), run.get("memory", {}))
    for part in (values, run, comparison):
        if isinstance(part, dict) and isinstance(part.get("training"), dict):
            yield TrainingConfig, part["training"]


def _tables_of_model(model: Table, layered: bool) -> Iterator[tuple[type, Table]]:
    yield from _tables_of_shape(model)
    own, reads = model["mixer_options"], model.get("encoder_mixer") or model["mixer"]
    if layered or not model.get("schedule"):
        yield from _tables_of_gene(MIXERS, model["mixer"], own)
    yield from _tables_of_gene(MIXERS, reads, model.get("encoder_options", {}))
    yield from _tables_of_gene(MIXERS, model.get("cross_mixer"), model.get("cross_options", {}))
    yield from _tables_of_gene(POSITIONS, model["position"], model["position_options"])
    yield from _tables_of_gene(MEMORIES, model.get("memory"), model.get("memory_options", {}))
    for mixer, options in own.get("own", {}).items():
        yield from _tables_of_gene(MIXERS, mixer, options)


def _tables_of_shape(model: Table) -> Iterator[tuple[type, Table]]:
    parts = {"block": BlockOptions, "pixels": PixelOptions, "summaries": SummaryOptions}
    yield from ((options, model.get(name, {})) for name, options in parts.items())


def _tables_of_gene(
    genes: Registry[Any], name: str | None, table: Table
) -> Iterator[tuple[type, Table]]:
    if name is not None:
        yield genes.get(name).Options, table


UPGRADES = (
    Upgrade("rows that were counted", 2, values=_rows_counted),
    Upgrade("channels of gmlp", 2, values=_channels_of_gmlp),
    Upgrade("options that their form does not read", 2, values=_unread_options),
    Upgrade("tables of pixel models", 2, tensors=_tables_of_pixels),
    Upgrade("random blocks of bigbird", 2, tensors=_random_blocks),
    Upgrade("scale of embeddings", 3, values=_scale_of_embeddings),
    Upgrade("genes in one table", 4, values=_genes_in_one_table),
    Upgrade("one budget", 5, values=_one_budget),
)
"""oldest first: each makes what the next one expects"""
