"""The family: its members by name (`rows`), and mixers and positions of the user.

Other packages add rows through the entry-point group ``everyformer.members``, each under its name
(``my-member = "module:ROW"``); so that listing costs nothing, their modules import no torch.
"""

import functools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from everyformer.core import plugins
from everyformer.core.errors import ConfigError, UnsupportedError, unknown
from everyformer.core.member import Member
from everyformer.core.seeds import twin
from everyformer.core.tasks import TASKS, Task, others, tasks_called
from everyformer.family.derived import row_of
from everyformer.family.outside import outside_name, outside_row
from everyformer.family.rows import BASELINES, FAMILY
from everyformer.genes import GENES
from sequence_laws.names import is_target


def list_members(*, task: str | None = None, abilities: tuple[str, ...] = ()) -> list[Member]:
    """All members in family order, or those that support ``task`` and every ability named.

    Of classify and regress those that do it of text; -image and -series name another kind.

    Raises:
        ConfigError: another package offers a row that cannot be used; names the package.
        UnknownNameError: there is no such task or ability.
    """
    called = None
    if task is not None:
        called = next(iter(tasks_called(task)), None)
        if called is None:
            raise unknown("task", task, TASKS)
    if isinstance(abilities, str):
        raise ConfigError(f"'abilities' is a tuple of names: ({abilities!r},)")
    return [
        m
        for m in _known().values()
        if (called is None or called in m.tasks) and all(m.can(a) for a in abilities)
    ]


def names() -> list[str]:
    """Names of all that can be trained and compared: all members, and the baselines."""
    return [*_known(), *(row.name for row in BASELINES)]


def info(name: str) -> Member:
    """The row of one member, baseline or twin (`core.seeds`), under that name; or of a whole model
    that is no member (file.py:factory, module:factory, hf:NAME).

    Raises:
        UnknownNameError: there is none; offers the nearest.
        ConfigError: the label of a twin is no word.
    """
    if outside_name(name) is not None:
        return outside_row(name)
    rows = _known() | {row.name: row for row in BASELINES}
    if name in rows:
        return rows[name]
    member, _ = twin(name)
    if member in rows:
        return replace(rows[member], name=name)
    if (member := name.partition("@")[0]) in rows:
        raise ConfigError(
            f"'{name}' is no twin of {member}, which has one word of letters, digits, _ and - "
            f"behind @: {member}@again"
        )
    error = unknown("member", member, rows)
    raise type(error)(
        f"{error}; a mixer or position of your own is known by --plugin or ef.register"
    )


def of_family(name: str) -> Member:
    """The row of one member, as `info`, for what a third-party model cannot do.

    Raises:
        UnsupportedError: it is one.
    """
    if is_target(name):
        raise UnsupportedError(
            f"'{name}' is a whole model of your own: no row describes it, no layer of it "
            "stands alone: `verify` checks it, `train` and `compare` learn with it"
        )
    return info(name)


def register(part: type[Any], row: Member | None = None) -> Member:
    """Make a mixer or position of yours a member, by its ``name``, in all calls and verbs.

    Processes that this one starts know it too, unless the class is of the script itself.

    Args:
        part: a final subclass of `everyformer.Mixer` or of `everyformer.core.position.Position`.
        row: its row (default: what the class can do, by building it).

    Raises:
        ConfigError: it is neither, has no name, or one that is taken.
    """
    if plugins.kind_of(part) in ("task", "data"):
        raise ConfigError(
            f"{part.__qualname__} is no member, but a part that members are trained with: name it "
            f"as family.register_spec('{part.__module__}:{part.__qualname__}')"
        )
    _require_free(part)
    plugins.add_class(part)
    _rows[part.name] = row or row_of(part)
    _look_again(part)
    return info(part.name)


def register_spec(spec: str) -> None:
    """`register` of a class named by ``module:Class`` or ``file.py:Class``; of what makes a whole
    model, leave to run it where a saved model names it."""
    if not plugins.names_gene(spec):
        plugins.allow_model(spec)
        return
    part = plugins.add_spec(spec)
    if plugins.kind_of(part) in GENES:
        _require_free(part)
        _look_again(part)
    _known.cache_clear()


def _look_again(part: type[Any]) -> None:
    """Let a class that was given be the one that its name means."""
    GENES[str(plugins.kind_of(part))].alternatives.forget(part.name)
    _known.cache_clear()


def _require_free(part: type[Any]) -> None:
    name, gene = str(getattr(part, "name", None)), plugins.kind_of(part) or "mixer"
    others, advice = GENES[gene].alternatives, f"give your {gene} another name"
    if name in {member.name for member in (*FAMILY, *BASELINES)}:
        raise ConfigError(f"'{name}' is a member of this library: {advice}")
    if others.is_own(name):
        raise ConfigError(f"'{name}' is a part of this library: {advice}")
    for kind in ("member", gene):
        for entry in plugins.offered(kind):
            if entry.name == name and others.get(name) is not part:
                raise ConfigError(f"'{name}' is {plugins.offer_of(entry, kind)}: {advice}")


_rows: dict[str, Member] = {}
"""of classes that were registered with one"""


@functools.cache
def _known() -> dict[str, Member]:
    """Every member by its name: those above, those of other packages, the user's."""
    known = {member.name: member for member in FAMILY}
    for entry in plugins.offered("member"):
        row, offer = plugins.loaded(entry, "member"), plugins.offer_of(entry, "member")
        if entry.name in known:
            raise ConfigError(f"{offer} is there already: it must choose another name")
        if not isinstance(row, Member) or row.name != entry.name:
            raise ConfigError(f"{offer} is no `Member` of that name, but {row!r}")
        known[entry.name] = row
    mixers = GENES["mixer"].alternatives
    for name in mixers.offers():
        if name not in known:
            known[name] = row_of(mixers.get(name))
    for name, part in plugins.own_classes().items():
        if name not in known and plugins.kind_of(part) in GENES:
            known[name] = _rows.get(name) or row_of(part)
    more = others().values()
    return {name: _able(row, more) for name, row in known.items()}


def _able(row: Member, more: Collection[Task]) -> Member:
    """A row with those of ``more`` tasks that suit it."""
    names = [task.name for task in more if task.suits(row)]
    return replace(row, tasks=(*row.tasks, *names)) if names else row
