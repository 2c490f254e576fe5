"""Models by name: ``file.py:factory``, ``module:factory``, ``hf:NAME``, ``onnx:FILE``, a program.

A factory is a class or a function that gives a `torch.nn.Module`. It is given the sizes that it
takes, by the usual names (`SIZES`). Code that is not ours runs with its output sent to stderr, and
whatever it raises is reported in its own name.
"""

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sequence_laws.adapters import subject_of
from sequence_laws.adapters.found import UnreadError
from sequence_laws.adapters.hugging_face import hugging_face
from sequence_laws.adapters.small_configs import SMALL
from sequence_laws.confined import needs_cuda, offline, one_process
from sequence_laws.errors import ConfigError, LawsError, PluginError, unknown
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.libraries import Library, libraries
from sequence_laws.memory import check_memory
from sequence_laws.named import module_of, named
from sequence_laws.subject import YOURS, Subject

OFFLINE = ("couldn't connect to", "HF_HUB_OFFLINE")
"""what the library of a hub says where it may not reach it"""
BYTES = 4 + 3 * 8
"""of a parameter in float32 and in the copies that laws make"""
SIZES = {
    "vocabulary": ("vocabulary", "vocab_size", "vocab", "n_vocab", "num_tokens", "n_tokens"),
    "width": ("width", "d_model", "dim", "hidden_size", "n_embd", "embed_dim"),
    "layers": ("layers", "num_layers", "n_layers", "n_layer", "depth", "num_hidden_layers"),
    "heads": ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads"),
    "max_length": ("max_length", "max_len", "max_seq_len", "block_size", "context_length"),
}
"""what an argument of a factory is called, by the size that it is"""


def target(
    name: str, sizes: Mapping[str, int] | None = None, *, trust: bool = False, **known: Any
) -> Subject:
    """The subject of a name; ``known`` is what `subject_of` takes.

    Args:
        sizes: by the names of `SIZES`, of which a factory is given all that it takes (default:
            small ones where it has no default of its own).
        trust: whether code that a folder of a model of transformers brings is run.

    Raises:
        ConfigError: there is no such thing, or what it reads cannot be guessed.
        PluginError: its code fails.
    """
    library, _, model = name.partition(":")
    try:
        if library == "hf":
            with foreign(name):
                made = hugging_face(model, sizes or SMALL, known.get("causal"), trust)
                return subject_of(made, **known)
        with foreign(name):
            if library in libraries():
                return subject_of(loaded(library).subject(model), **known)
            return _made(name, sizes, **known)
    except (PluginError, UnreadError) as error:
        if asks := needs_cuda(error):
            raise PluginError(f"the model '{name}': {asks}") from error
        raise


def _made(name: str, sizes: Mapping[str, int] | None, **known: Any) -> Subject:
    if name.startswith("onnx:") or name.endswith((".pt2", ".onnx")):
        from sequence_laws.adapters.files import from_file

        return subject_of(from_file(name.removeprefix("onnx:"), **known), **known)
    factory = named(name, f"the model '{name}'")
    made = factory if isinstance(factory, nn.Module | Subject) else None
    given = {} if made is not None else sized(name, factory, sizes)
    make = functools.partial(factory, **given)
    if made is None:
        check_size(name, make)
    torch.manual_seed(0)
    model = make() if made is None else made
    if not isinstance(model, nn.Module | Subject):
        raise ConfigError(
            f"'{name}' gives a {type(model).__name__}, which is no model: expected a "
            "torch.nn.Module, or a class or function that makes one"
        )
    module, _, attribute = name.rpartition(":")
    words = ", ".join(f"{argument}={value!r}" for argument, value in given.items())
    call = "" if made is not None else f"({words})"
    in_file = module.endswith(".py")
    importable = Path(module).stem if in_file else module
    build = [f"from {importable} import {attribute}", f"model = {attribute}{call}"]
    if in_file:
        # as it was given: a program of a board is of no machine
        build.insert(0, f"import sys; sys.path.insert(0, {str(Path(module).parent)!r})")
    if isinstance(model, Subject):
        subject = subject_of(model, attribute, **known)
        if subject.build == YOURS:
            subject.build = (*build[:-1], f"{build[-1]}.model")
        return subject
    again = None if made is not None else make
    return subject_of(model, attribute, build=build, make=again, **known)


class _Undrawn(TorchFunctionMode):
    """No random numbers are drawn, for which torch would import its compiler on ``meta``."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        draws = getattr(func, "__module__", "") == "torch.nn.init"
        if draws or getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return (*args, *(kwargs or {}).values())[0]
        return func(*args, **(kwargs or {}))


def check_size(name: str, make: Callable[[], nn.Module]) -> None:
    """Refuse a model that does not fit into the memory that is free, with its copies in float64.

    Raises:
        ResourceError: both sizes.
    """
    try:
        with torch.device("meta"), _Undrawn():
            made = make()
            every = [*made.parameters(), *made.buffers()]
    except FAILURES:  # code that looks at numbers, or that will fail again
        return
    count = sum(weight.numel() for weight in every)
    what = f"'{name}' with its {count:,} parameters and copies of it in float64"
    check_memory(BYTES * count, what, "name one that is smaller, or give it smaller sizes")


def sized(
    name: str, factory: Callable[..., Any], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The arguments of a factory that are sizes: all of ``sizes`` that it takes, or those of
    `SMALL` that it must be given.

    Raises:
        ConfigError: it must be given something else.
    """
    taken = arguments(factory)
    found = {word: size for size, words in SIZES.items() for word in words if word in taken}
    others = [word for word, needed in taken.items() if needed and word not in found]
    if others:
        raise ConfigError(
            f"'{name}' wants {', '.join(others)}: name a function that makes the model of sizes "
            f"alone ({', '.join(SIZES)}), as def make(): return {factory.__name__}({others[0]}=...)"
        )
    if sizes is None:
        return {word: SMALL[size] for word, size in found.items() if taken[word]}
    return {word: sizes[size] for word, size in found.items() if size in sizes}


@contextlib.contextmanager
def foreign(name: str) -> Iterator[None]:
    """A block of code that is not ours: its prints go to stderr, its failures are its own."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # or each of its requests is tried five times
    with contextlib.redirect_stdout(sys.stderr), one_process(), offline() as hosts:
        try:
            yield
        except LawsError:
            raise
        except FAILURES as error:
            what = "cannot be made"
            if hosts or any(word in str(error) for word in OFFLINE):
                what = "downloads, which nothing that is checked may do"
            raise PluginError(f"the model '{name}' {what}: {describe(error)}") from error


def arguments(factory: Any) -> dict[str, bool]:
    """Names that a factory can be given, and whether it must be."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin that says nothing
        return {}
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default is p.empty for p in parameters if p.kind not in rest}


def loaded(name: str) -> Library:
    """The library of a name, or that of a file."""
    if name.endswith(".py"):
        return of_file(name)
    if name not in libraries():
        raise unknown("library", name, libraries())
    library: Library = libraries()[name].load()
    return library


def chosen(target: str) -> tuple[Library, list[str]]:
    """The library and those of its models that a target names, all or one.

    Raises:
        UnknownNameError: there is no such library, or it has no such model.
        ConfigError: it cannot be imported.
    """
    name, _, word = target.rpartition(":")
    if not name:
        raise ConfigError(f"'{target}' names no models: write LIBRARY:all or FILE.py:all")
    try:
        library = loaded(name)
        groups = library.groups()
    except LawsError:
        raise
    except FAILURES as error:
        raise ConfigError(
            f"the library '{name}' cannot be imported ({describe(error)}): install it, or leave "
            f"out {target}"
        ) from error
    if word not in groups and word not in groups["all"]:
        raise unknown(f"model of {name}", word, (*groups, *groups["all"]))
    return library, [*groups.get(word, [word])]


def of_file(path: str) -> Library:
    """What the classes and the functions without arguments of a file make."""

    def groups() -> dict[str, list[str]]:
        module = module_of(path)
        own = {k: v for k, v in vars(module).items() if k[0] != "_" and _is_of(v, module)}
        return {"all": [name for name, value in own.items() if makes(value)]}

    def makes(value: Any) -> bool:
        if inspect.isclass(value):
            return issubclass(value, nn.Module)
        return inspect.isfunction(value) and not any(arguments(value).values())

    packages = getattr(module_of(path), "PACKAGES", ())
    return Library(Path(path).name, groups, lambda name: target(f"{path}:{name}"), packages)


def _is_of(value: Any, module: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__
