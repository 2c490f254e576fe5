"""Three members to try where none is named, by what their rows say and the data are."""

from everyformer.core.member import Member
from everyformer.core.tasks import Task
from everyformer.family import info

MADE_FOR = ("gpt", "bert", "vit", "transformer", "decision-transformer", "gtrxl", "attention")
"""published for one task, and the last for all; the first that has the task"""
LONG, LARGE = "linear", "image-transformer"
"""whose time grows like the length, of any row and of pictures that are drawn"""
FORWARD, BOTH_WAYS = "rope", "gmlp"
"""another way to tell places apart, and another to mix them"""


def three(task: Task) -> tuple[Member, ...]:
    """Members for a task: made for it, for long rows, and of another kind."""
    made = next(name for name in MADE_FOR if task.name in info(name).tasks)
    forward = task.forward_only or task.encodes
    names = (made, LARGE if task.draws else LONG, FORWARD if forward else BOTH_WAYS)
    return tuple(info(name) for name in names)


def reason(member: Member, task: Task) -> str:
    """The facts of its row that matter for a task, in words."""
    growth = f"time grows like {member.cost.growth}"
    if not task.forward_only:
        return f"{growth}, reads both ways" if member.can("bidirectional") else growth
    carried = {
        None: "is not known",
        "constant": "stays as large",
        "grows": "grows with what was read",
    }
    return f"{growth}, its state {carried[member.state]}"
