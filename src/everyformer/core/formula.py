"""Formulas of the members' table as numbers.

Letters and numbers with + - * / ( ), sqrt and log between them; a space between two is a product.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_PRODUCT = re.compile(r"(?<=[\w)]) +(?=[\w(])")
_BETWEEN: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_OF: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "log": math.log}


def letters_in(formula: str) -> set[str]:
    """Letters of a formula, without the names of functions."""
    return {node.id for node in ast.walk(_read(formula)) if isinstance(node, ast.Name)} - set(_OF)


def value_of(formula: str, letters: Mapping[str, float]) -> float:
    """Number that a formula is.

    Raises:
        KeyError: one of its letters has no value. ValueError: it is no formula.
    """

    def value(node: Any) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name(id=letter):
                return letters[letter]
            case ast.BinOp(left, between, right) if type(between) in _BETWEEN:
                return _BETWEEN[type(between)](value(left), value(right))
            case ast.Call(ast.Name(id=name), [of]) if name in _OF:
                return _OF[name](value(of))
        raise ValueError(f"'{formula}' is no formula of sums, products and quotients")

    return value(_read(formula))


def _read(formula: str) -> ast.expr:
    try:
        return ast.parse(_PRODUCT.sub("*", formula.strip()), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"'{formula}' is no formula of sums, products and quotients") from error
