"""Three members to try where none is named, by what their rows say and the data are."""

import shlex
from collections.abc import Sequence

from everyformer.cli.parsing import say
from everyformer.core import plugins as own
from everyformer.core.errors import ConfigError
from everyformer.core.member import Member
from everyformer.core.tasks import Task
from everyformer.data.config import DataConfig
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


def propose(words: Sequence[str], config: DataConfig, word: str | None) -> ConfigError:
    """Say which three members suit the data, each with a reason and its command; the refusal.

    Args:
        words: those of `train`, without a member.
        word: the task that was said.

    Raises:
        ConfigError, DataError: the data cannot be read, or serve no such task.
    """
    from everyformer.data.kind import Request
    from everyformer.data.load import recognised

    with Request(config, word) as request:
        task = recognised(request).does
    say(f"{config.source}: {task.reads}, for the task {task.name}; try one of these")
    for member in three(task):
        command = own.command(shlex.join(["train", member.name, *words]))
        say(f"\n  {command}\n      {member.title}; {_why(member, task)}")
    say("")
    return ConfigError(
        f"name the member to train: three are above, `everyformer list --task {task.name}` has all "
        "that can"
    )


def _why(member: Member, task: Task) -> str:
    """The facts of its row that matter for a task, in words."""
    told = f"time grows like {member.cost.growth}"
    if not task.forward_only:
        return f"{told}, reads both ways" if member.can("bidirectional") else told
    carried = {
        None: "is not told",
        "constant": "stays as large",
        "grows": "grows with what was read",
    }
    return f"{told}, its state {carried[member.state]}"
