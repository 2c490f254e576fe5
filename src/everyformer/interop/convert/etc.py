"""Lifting of a model of softmax attention to an ETC: its weights, a longer text, global tokens.

One softmax over both kinds of keys makes standard attention a special case of ETC: as long as a
text is within the radius, has no global token, and labels add nothing, both give the same. So that
training goes on from there, labels begin as zeros (in the paper: fresh); global queries begin with
the projections of the others, and their vector is fresh. Learned positions are repeated until the
length is reached, as texts beyond it were cut into pieces before.

Source: Ainslie et al. 2020, arXiv 2004.08483, section 4 (lifting from RoBERTa).
"""

import dataclasses
from typing import Any

from torch import Tensor

from everyformer.core.config import Choice, from_dict, to_dict
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.tasks import TASKS, tasks_that
from everyformer.genes.mixers.attention.options import AttentionOptions
from everyformer.genes.mixers.etc import ETCOptions
from everyformer.genes.model_options import SummaryOptions
from everyformer.interop.convert.checkpoint import Imported, fill
from everyformer.interop.convert.rules import Report
from everyformer.models.base import Model
from everyformer.models.build import build_model

KEPT = ("bias", "attention_dropout")
"""options of attention that an ETC has too"""
TABLE = "position.table"


def lift_to_etc(
    model: Model,
    *,
    length: int | None = None,
    summaries: SummaryOptions | None = None,
    **options: Any,
) -> Imported:
    """An ETC, in evaluation mode, that goes on from ``model``, for example an imported BERT.

    Args:
        model: reads text both ways (task mlm or classify-text) by softmax attention.
        length: longest text, at least as before (default: as before).
        summaries: its global tokens (default: one for every 16 tokens).
        options: of the mixer (`ETCOptions`): radius, clip, sharing ...

    Raises:
        ConfigError: a shorter length than before.
        UnsupportedError: attention of a kind that ETC has not.
        GeneError: what the model is otherwise does not go with global tokens.
    """
    config = model.config
    mixer = config.genes["mixer"]
    chosen = from_dict(AttentionOptions, mixer.options)
    usual = vars(AttentionOptions())
    odd = [
        f"{name}={value}"
        for name, value in vars(chosen).items()
        if name not in KEPT and value != usual[name]
    ]
    if not TASKS[config.task].summarised or config.causal or mixer.name != "attention":
        raise UnsupportedError(
            f"this {config.member} (mixer {mixer.name}, task {config.task}"
            f"{', causal' if config.causal else ''}) cannot go on as etc: only softmax attention "
            f"that reads both ways can, of the tasks {', '.join(tasks_that('summarised'))}"
        )
    if odd or config.schedule:
        raise UnsupportedError(
            f"etc has no counterpart to {', '.join(odd or config.schedule)} of this attention"
        )
    if length is not None and length < config.tokens:
        raise ConfigError(
            f"length={length} is shorter than the {config.tokens} tokens that the model reads: "
            "give at least as many"
        )
    mixer_options = {name: getattr(chosen, name) for name in KEPT} | options
    expected = dataclasses.replace(
        config.with_genes(mixer=Choice("etc", to_dict(from_dict(ETCOptions, mixer_options)))),
        member="etc",
        summaries=summaries or SummaryOptions(per="tokens"),
        max_length=config.max_length if length is None else length,
    )
    lifted = build_model(expected)
    weights, shapes = model.state_dict(), lifted.state_dict()
    tensors: dict[str, Tensor] = {}
    left: list[str] = []
    for name, value in weights.items():
        into = _lifted(name, value, shapes)
        tensors |= into
        left += [] if into else [name]
    zeros = {n: t.new_zeros(t.shape) for n, t in shapes.items() if "_labels." in n}
    fresh = [name for name in shapes if name not in tensors]
    fill(lifted, tensors | zeros)
    return Imported(lifted.eval(), Report(list(tensors), fresh, left))


def _lifted(name: str, value: Tensor, shapes: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an ETC that one of a standard model becomes; {}: none."""
    if name == TABLE and name in shapes:
        rows = len(shapes[name])
        return {name: value.repeat(-(-rows // len(value)), 1)[:rows]}
    block, mixer, part = name.partition(".mixer.")
    if not mixer:
        return {name: value} if name in shapes else {}
    kind = part.rpartition(".")[2]
    if part.startswith("out."):
        new = {f"out.{kind}": value, f"summary_out.{kind}": value}
    elif part == "project.weights.0":
        parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
        new = {named: rows for of, rows in parts for named in _sides(of, "weight")}
    elif part.startswith("project.biases."):
        new = dict.fromkeys(_sides(kind, "bias"), value)
    else:
        new = {}
    result = {f"{block}.mixer.{named}": rows for named, rows in new.items()}
    return {named: rows for named, rows in result.items() if named in shapes}


def _sides(part: str, kind: str) -> list[str]:
    """Names under which an ETC has this projection, whatever it shares."""
    kinds = ("",) if part == "query" else (".any", ".long", ".global")
    return [f"{side}.{part}{of}.{kind}" for side in ("long", "summary") for of in kinds]
