"""Rows of third-party models, named file.py:factory, module:factory or hf:NAME."""

import datetime

from everyformer.core.config import Choice
from everyformer.core.errors import ConfigError
from everyformer.core.member import Cost, Genes, Member
from everyformer.core.plugins import placed
from everyformer.core.seeds import twin
from everyformer.core.tasks import TASKS
from everyformer.genes import plain_genes
from sequence_laws.names import is_target

_WHOLE = "it is read whole, whatever cache it has"


def outside_name(name: str) -> str | None:
    """The name of a third-party model, or of its twin, its file by the whole path; None of a
    member.

    Raises:
        ConfigError: it names many models, or a program, which cannot be trained.
    """
    name = twin(name)[0]
    if not is_target(name):
        return None
    if name.startswith("onnx:") or name.endswith((".onnx", ".pt2")):
        raise ConfigError(
            f"'{name}' is a program without weights that could be trained: name what makes the "
            "model, as file.py:factory, module:factory or hf:KIND"
        )
    return placed(name)


def outside_row(name: str) -> Member:
    """Row of a third-party model, of which nothing is known before it is made."""
    tasks = [task for task, known in TASKS.items() if known.continues or known.answers]
    return Member(
        name, "a whole model of your own", "your own", datetime.date.today().year, None,
        Genes(plain_genes() | {"position": Choice(None)}), tuple(tasks),
        Cost(None, None, "not stated", "not stated"), "none is made", cross="it is read whole",
        streaming=_WHOLE, exempt={"cost": "no cost is claimed"}, group="your own",
    )  # fmt: skip
