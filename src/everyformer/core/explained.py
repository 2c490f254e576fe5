"""The string literal under each field of a dataclass, so that its meaning is written once."""

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from typing import Any


def docs_of(options: Any) -> dict[str, str]:
    """`field_docs` of an instance."""
    kind: Any = type(options)
    return field_docs(kind)


@functools.cache
def field_docs(cls: Any) -> dict[str, str]:
    """The explaining string under each field of a dataclass, base classes included."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner is object or not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(typing.cast(type, owner)))).body[0]
        assert isinstance(body, ast.ClassDef)
        names = {f.name for f in dataclasses.fields(owner)}
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and field.target.id in names
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs
