"""Models by name: ``file.py:factory``, ``module:factory``, ``hf:NAME``, ``onnx:FILE``, a program.

A factory is a class or a function without arguments that gives a `torch.nn.Module`. Code that is
not ours runs with its output sent to stderr, and whatever it raises is said in its own name.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from everyformer.core.errors import ConfigError, PluginError
from everyformer.core.foreign import FAILURES, describe
from everyformer.core.plugins import named
from everyformer.laws.adapters import subject_of
from everyformer.laws.adapters.transformers import hugging_face
from everyformer.laws.subject import Subject


def target(name: str, **known: Any) -> Subject:
    """The subject of a name; ``known`` is what `subject_of` takes.

    Raises:
        ConfigError: there is no such thing, or what it reads cannot be guessed.
        PluginError: its code fails.
    """
    if name.startswith("hf:"):
        with foreign(name):
            return hugging_face(name[3:], **known)
    if name.startswith("onnx:") or name.endswith((".pt2", ".onnx")):
        from everyformer.laws.adapters.files import from_file

        return from_file(name.removeprefix("onnx:"), **known)
    with foreign(name):
        factory = named(name, f"the model '{name}'")
        if not isinstance(factory, nn.Module) and (wanted := arguments(factory)):
            raise ConfigError(
                f"'{name}' wants {', '.join(wanted)}: name a function without arguments that "
                f"makes the model, as def make(): return {factory.__name__}({wanted[0]}=...)"
            )
        torch.manual_seed(0)
        model = factory if isinstance(factory, nn.Module) else factory()
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"'{name}' gives a {type(model).__name__}, which is no model: expected a "
            "torch.nn.Module, or a class or function without arguments that makes one"
        )
    module, _, attribute = name.rpartition(":")
    call = "" if isinstance(factory, nn.Module) else "()"
    build = [f"from {_importable(module)} import {attribute}", f"model = {attribute}{call}"]
    if module.endswith(".py"):
        build.insert(0, f"import sys; sys.path.insert(0, {str(Path(module).resolve().parent)!r})")
    make = None if isinstance(factory, nn.Module) else factory
    return subject_of(model, attribute, build=build, make=make, **known)


def _importable(module: str) -> str:
    return Path(module).stem if module.endswith(".py") else module


@contextlib.contextmanager
def foreign(name: str) -> Iterator[None]:
    """A block of code that is not ours: its prints go to stderr, its failures are its own."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (ConfigError, PluginError):
        raise
    except FAILURES as error:
        raise PluginError(f"the model '{name}' cannot be made: {describe(error)}") from error


def arguments(factory: Any) -> list[str]:
    """Arguments without which a factory cannot be called."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin that says nothing
        return []
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in rest]
