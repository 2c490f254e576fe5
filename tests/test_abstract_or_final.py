"""A method of a base is abstract, final, a hook that does nothing, or extended; never replaced."""

import ast
import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import everyformer
import sequence_laws

OURS = ("everyformer.", "sequence_laws.")
ANSWERED = {
    ("Call", "call"): "with inputs alone; adapters know what else there is",
    ("Call", "given"): "likewise",
    ("Call", "packed"): "likewise",
    ("Call", "packed_code"): "likewise",
    ("Call", "loss"): "by name or found; a whole model has one of its task",
    ("Subject", "variants"): "one way; transformers has several",
    **dict.fromkeys(
        [("Subject", word) for word in ("contexts", "encodings", "flexible")],
        "none; some read more",
    ),
    ("Call", "plain_calls"): "a mask of ones; those of transformers have words of their own",
    ("CaseMixer", "of_length"): "with its options; on a board with the defaults",
    ("Operator", "forward"): "outputs alone; of one with a state also that",
    **dict.fromkeys(
        [("Plain", name) for name in ("streams", "call", "feed", "feed_code")],
        "found by trying; x-transformers' words are known",
    ),
    ("Call", "stored"): "a state_dict; whole models have files of their own",
    ("Inputs", "draw"): "numbers; of a whole model its batch",
    **dict.fromkeys(
        [("Subject", name) for name in ("takes", "max_length", "marks", "exactly", "converted")],
        "found by trying; a member's case knows it",
    ),
    **dict.fromkeys(
        [("Subject", name) for name in ("room", "bound", "outputs", "objective")],
        "of any model; a member claims more, or has a loss",
    ),
    ("Probe", "answers"): "symbols without signs; some keep values apart",
    ("Tokenizer", "encode_pairs"): "text by text; some have a vocabulary a side, or one fast call",
}


def classes() -> list[type]:
    for package in (everyformer, sequence_laws):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(OURS)]
    found = {c for m in modules for c in vars(m).values() if inspect.isclass(c)}
    return [c for c in found if c.__module__.startswith(OURS)]


def function(member: Any) -> Callable[..., Any] | None:
    member = getattr(member, "__func__", member)
    member = member.fget if isinstance(member, property) else member
    return member if inspect.isfunction(member) else None


@cache
def does_nothing(f: Callable[..., Any]) -> bool:
    """Raises, or returns a constant, an attribute or its argument."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(f))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    body = [
        s for s in tree.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    ]
    if not body or isinstance(body[0], ast.Raise):
        return True
    if len(body) > 1 or not isinstance(body[0], ast.Return):
        return False
    value = body[0].value
    parts = () if value is None else ast.walk(value)
    return not any(isinstance(part, ast.Call | ast.BinOp | ast.Subscript) for part in parts)


def replaced(cls: type) -> Iterator[tuple[str, str]]:
    for name, member in vars(cls).items():
        own = function(member)
        if own is None or name.startswith("__"):
            continue
        for base in cls.__mro__[1:]:
            if not (base.__module__.startswith(OURS) and name in vars(base)):
                continue
            theirs = function(vars(base)[name])
            if theirs is not None and not does_nothing(theirs):
                text = inspect.getsource(own)
                if not any(f"{of}.{name}(" in text for of in ("super()", "State")):
                    yield base.__name__, name
            break


def test_no_method_that_does_something_is_replaced():
    found = {pair: cls.__name__ for cls in classes() for pair in replaced(cls)}
    assert {pair: cls for pair, cls in found.items() if pair not in ANSWERED} == {}
    assert found.keys() == ANSWERED.keys()


class Base:
    def constant(self) -> int:
        return 0

    def double(self, x: int) -> int:
        return 2 * x


class Replaces(Base):
    def constant(self) -> int:
        return 1

    def double(self, x: int) -> int:
        return x + x


class Extends(Base):
    def double(self, x: int) -> int:
        return super().double(x) + 1


def test_the_walk_tells_what_is_replaced_from_what_is_extended():
    Base.__module__ = "everyformer.base"
    assert list(replaced(Replaces)) == [("Base", "double")]
    assert list(replaced(Extends)) == []
