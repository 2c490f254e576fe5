"""A model for long texts out of one for short ones: attention becomes sparse, positions go on.

    P'[p] = P[p mod n],   p < n'                      a table of n rows repeated to n'
    q', k', v' of global tokens = q, k, v             the second projections are copies
    labels of an ETC = 0                              in the paper: fresh

All else is taken over, so that texts that the patterns cover whole give what they gave before (of a
Longformer those of at most W/2 + 1 tokens, of a BigBird those of a few blocks, of an ETC those
within the radius, as long as it has no global tokens: one softmax over both kinds of keys makes
standard attention a special case of it). Repeated rows know the near neighbourhood from the start;
the model then goes on training on long texts. The vector of an ETC's global tokens is fresh.

Every row is filled, whatever the lengths are; a row for padding, as RoBERTa's table has, is not
part of ours.

Source: Beltagy et al. 2020, arXiv 2004.05150, section 5; Zaheer et al. 2020, arXiv 2007.14062,
appendix E; Ainslie et al. 2020, arXiv 2004.08483, section 4.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from everyformer.core.config import Choice, from_dict
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.tasks import tasks_that
from everyformer.genes.config import DEFAULT_LENGTH, ModelConfig
from everyformer.genes.mixers.attention.options import AttentionOptions
from everyformer.genes.mixers.longformer import Longformer
from everyformer.genes.model_options import SummaryOptions
from everyformer.models.base import Model
from everyformer.models.build import build_model

LONG = ("longformer", "bigbird", "etc")
"""mixers that attention can become"""
CARRIED = ("bias", "attention_dropout")
"""options of attention that they have too"""
TABLES = ("learned", "learned-per-layer")
"""positions with rows to repeat"""
SHARED = ("", ".any", ".long", ".global")
"""what an ETC calls projections of queries, and of keys and values of one or of both kinds"""
FREE = ("sinusoidal", "rope", "alibi")
"""positions that any length has"""


def lengthen(
    model: Model,
    mixer: str,
    length: int,
    *,
    summaries: SummaryOptions | None = None,
    **options: Any,
) -> Model:
    """``model`` for texts of ``length`` tokens, in evaluation mode; the old one is left as it is.

    Args:
        mixer: 'longformer', 'bigbird' or 'etc'.
        length: at least what the model reads now.
        summaries: global tokens of an ETC (default: one for every 16 tokens).
        options: of the mixer (window, block_size, radius ...).

    Raises:
        ConfigError: another mixer, or a shorter length.
        UnsupportedError: a model whose attention or positions cannot go on; says which.
        GeneError: what the model is otherwise does not go with global tokens.
    """
    config = model.config
    if mixer not in LONG:
        raise ConfigError(f"attention can become {' or '.join(LONG)}, not '{mixer}'")
    if length < (now := config.max_length or DEFAULT_LENGTH):
        raise ConfigError(
            f"`length={length}` is shorter than the {now} tokens that the model reads: give at "
            "least as many"
        )
    _check(config, mixer)
    shared = {
        name: value for name, value in config.genes["mixer"].options.items() if name in CARRIED
    }
    chosen = config.with_genes(mixer=Choice(mixer, {**shared, **options}))
    longer = dataclasses.replace(chosen, member=mixer, max_length=length, schedule={})
    if mixer == "etc":
        longer = dataclasses.replace(longer, summaries=summaries or SummaryOptions(per="tokens"))
    out = build_model(longer)
    out.to(next(model.parameters()).dtype)
    weights = out.state_dict()
    for name, value in weights.items():
        if "_labels." in name:
            value.zero_()
    for name, value in model.state_dict().items():
        if name.endswith(".table") and name in weights:
            # more rows: the first ones again and again
            value = value[torch.arange(len(weights[name]), device=value.device) % len(value)]
        weights |= _of_etc(name, value, weights) if mixer == "etc" else {name: value}
    out.load_state_dict(weights)
    for mixer_of_layer in out.stack.mixers:
        if isinstance(mixer_of_layer, Longformer) and mixer_of_layer.project_global is not None:
            mixer_of_layer.copy_projections()
    return out.eval()


def _of_etc(name: str, value: Tensor, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of an ETC, among its ``names``, that one of attention becomes."""
    block, mixer, part = name.partition(".mixer.")
    if not mixer:
        return {name: value}
    owner, _, kind = part.rpartition(".")
    parts = {f"{owner}.{kind}": value}
    if owner == "project.weights":
        chunks = zip(("query", "key", "value"), value.chunk(3), strict=True)
        parts = {f"{of}{keys}.weight": rows for of, rows in chunks for keys in SHARED}
    elif owner == "project.biases":
        parts = {f"{kind}{keys}.bias": value for keys in SHARED}
    sides = ("", "summary_") if owner == "out" else ("long.", "summary.")
    new = {f"{block}.mixer.{side}{one}": rows for one, rows in parts.items() for side in sides}
    return {name: rows for name, rows in new.items() if name in names}


def _check(config: ModelConfig, into: str) -> None:
    """Refuse what the long mixer ``into`` cannot take over."""
    if into == "etc" and not config.does.summarised:
        raise UnsupportedError(
            f"this {config.member} (task {config.task}) cannot go on as etc: only models that read "
            f"both ways can, of the tasks {', '.join(tasks_that('summarised'))}"
        )
    mixer, position = config.genes["mixer"], config.genes["position"]
    if mixer.name != "attention" or config.schedule or config.image is not None:
        what = f"mixer '{mixer.name}'" if mixer.name != "attention" else "a schedule or images"
        raise UnsupportedError(
            f"only models of text with plain attention in all layers can be made longer; this one "
            f"has {what}"
        )
    plain, chosen = AttentionOptions(), from_dict(AttentionOptions, mixer.options)
    for field in dataclasses.fields(AttentionOptions):
        value, usual = getattr(chosen, field.name), getattr(plain, field.name)
        same = value == usual or (field.name == "kv_heads" and value == config.heads)
        if field.name not in CARRIED and not same:
            raise UnsupportedError(
                f"`{field.name}={value!r}` of this model's attention has no counterpart in the "
                "sparse mixers, so it cannot be made longer"
            )
    if position.name is not None and position.name not in (*TABLES, *FREE):
        raise UnsupportedError(
            f"position '{position.name}' cannot be made longer by repetition; those that can: "
            f"{', '.join((*TABLES, *FREE))}"
        )
