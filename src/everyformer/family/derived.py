"""The row of a plug-in mixer or position without one, by building it."""

import datetime
import inspect
from typing import Any

from everyformer.core.config import Choice
from everyformer.core.errors import ConfigError, GeneError, PluginError
from everyformer.core.member import Cost, Genes, Member
from everyformer.core.plugins import kind_of
from everyformer.core.tasks import DECISION, LM, MLM, PIXELS, TASKS
from everyformer.genes import plain_genes
from sequence_laws.foreign import FAILURES, describe, source

WIDTH = 16
"""of the mixer that is built"""


def row_of(part: type[Any]) -> Member:
    """Row derived from the class of a mixer or position, where nobody has written a row for it.

    A small one is built both ways, unless it is causal only; a mixer is read with where it is not
    causal; a refusal, or that no output depends on a later token, is the reason why it cannot be
    that.

    Raises:
        ConfigError: it can be neither. PluginError: it cannot be built.
    """
    import torch

    from everyformer.core.devices import forked_random

    gene = kind_of(part) or "mixer"
    mixes = gene == "mixer"
    can: dict[str, Any] = {}
    built: dict[str, Any] = {}
    for ability, causal in (("causal", True), ("bidirectional", False)):
        if mixes and not causal and part.causal_only is not None:
            can[ability] = part.causal_only
            continue
        try:
            # whoever seeded torch to make a model does not know that a row is looked up first
            with forked_random(torch.device("cpu")):
                built[ability] = part(width=WIDTH, heads=2, causal=causal, max_length=16)
                can[ability] = True if causal or not mixes else _reads_later(built[ability])
        except GeneError as error:
            can[ability] = str(error)
        except FAILURES as error:
            raise PluginError(
                f"the {gene} '{part.name}' ({source(part)}) cannot be built, {ability}, 16 wide, "
                f"with 2 heads, for 16 tokens: {describe(error)}"
            ) from error
    if not built:
        raise ConfigError(
            f"the {gene} '{part.name}' ({source(part)}) can be built neither causal "
            f"({can['causal']}) nor bidirectional ({can['bidirectional']}): an __init__ of its own "
            "must take 'causal' and hand it on"
        )
    if mixes:
        streams = "causal" in built and built["causal"].continues
        can["streaming"] = streams or "it does not say how a state begins (empty_state)"
        can["cross"] = part.supports_cross or "it has no cross form"
    else:
        can["streaming"] = next(iter(built.values())).streams or True
        can["cross"] = part.acts_on in ("embeddings", "layers") or "it is of one sequence"
    tasks = [name for name, task in TASKS.items() if task.answers]
    if can["bidirectional"] is True:
        tasks = [MLM, *tasks]
    if can["causal"] is True:
        tasks = [LM, *tasks, PIXELS, DECISION]
    exempt = {"cost": "no cost is claimed: write a row for it"}
    if mixes and not _overrides(part, "text_reference") and not _overrides(part, "reference"):
        exempt["equation"] = "it has no reference (text_reference)"
    about = (inspect.getdoc(part) or part.name).splitlines()[0]
    return Member(
        part.name, about.rstrip("."), "your own", datetime.date.today().year, None,
        Genes(plain_genes() | {gene: Choice(part.name)}), tuple(tasks),
        Cost(None, None, "not stated", "not stated"), "none is made", exempt=exempt, gene=gene,
        group="your own", **can,
    )  # fmt: skip


def _reads_later(mixer: Any) -> bool | str:
    """True, or that outputs depend on earlier tokens and on no later one.

    One whose outputs depend on no other token, as it may be before it has learned, or that fails as
    it reads, is taken at its word here: `verify` tries it further.
    """
    import torch

    x = torch.randn(1, 8, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    try:
        with torch.enable_grad():
            y = mixer.eval()(x).y[0]
        rows = [torch.autograd.grad(out.sum(), x, retain_graph=True)[0][0] for out in y]
    except FAILURES:
        return True
    seen = torch.stack([(row != 0).any(1) for row in rows])
    alone = bool(seen.tril(-1).any()) and not bool(seen.triu(1).any())
    return "no output depends on a later token, so it is causal alone" if alone else True


def _overrides(mixer: type[Any], name: str) -> bool:
    """True if a class outside of this library defines a method."""
    owner = next((one for one in mixer.__mro__ if name in vars(one)), None)
    return owner is not None and not owner.__module__.startswith("everyformer.")
