"""A device of its own that needs no hardware: tensors there are the host's in a box.

What reads one without asking for it, or lets one meet a tensor of the host, fails as it would on a
GPU; what is computed is the host's to the bit. It cannot be taken out of a process again, and makes
``--device auto`` mean itself:

    python tests/sandbox_device.py verify gpt --device sandbox

runs the command line where there is such a device, and ``--lines`` one after the other those that
stdin has as JSON, on a device that has no float64, as Apple's have none; each gives its exit code,
what it wrote, and how many operators the device ran.
"""

import contextlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from everyformer.core.devices import WITHOUT_DOUBLES

NAME = "sandbox"
HOST = torch.device("cpu")
ran = Counter[str]()
"""how often the device ran each operator"""
MIXING = {"copy_", "_to_copy", "index", "_unsafe_index", "index_put", "index_put_"}
"""operators for which torch itself lets tensors of the host and of a device meet"""


_HostGenerator = torch.Generator


class _Module(backend_registration._DummyBackendModule):
    """The module ``torch.sandbox``, with random numbers of its own."""

    def __init__(self) -> None:
        self.random = torch.get_rng_state()

    def manual_seed_all(self, seed: int) -> None:
        self.random = _HostGenerator().manual_seed(seed).get_state()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> Tensor:
        return self.random

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        self.random = state

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """A block in which the host draws for the device."""
        with torch.random.fork_rng([]):
            torch.set_rng_state(self.random)
            yield
            self.random = torch.get_rng_state()

    def synchronize(self, device: Any = None) -> None:
        """Nothing is ever under way."""

    def device(self, device: Any) -> AbstractContextManager[None]:
        return nullcontext()


SANDBOX = _Module()


class Boxed(Tensor):
    """A tensor of the second device.

    Args:
        held: its numbers, on the host.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Boxed":
        if held.dtype is torch.float64 and NAME in WITHOUT_DOUBLES:
            raise TypeError(f"a device without float64 was given {tuple(held.shape)} of it")
        where = {"dtype": held.dtype, "device": torch.device(NAME, 0)}
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        room = {"storage_size": 1 << 40}  # so that it may grow; nothing is reserved
        box: Boxed = Tensor._make_wrapper_subclass(cls, held.shape, **layout, **where, **room)
        box.held = held
        return box

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Boxed({self.held})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in (Tensor.tolist, Tensor.data_ptr, Tensor.untyped_storage):
            return func(args[0].held)
        if func is Tensor.numpy:
            raise TypeError(f"a tensor on {NAME} is none of numpy's: call Tensor.cpu() first")
        if func is Tensor.__deepcopy__:  # torch would copy the memory, of which there is none
            one, memo = args
            with torch.no_grad():
                return memo.setdefault(id(one), one.clone().requires_grad_(one.requires_grad))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # for inference torch leaves operators whole that are made of others
        parts = func.decompose(*args, **(kwargs or {}))
        return _run(func, args, kwargs or {}) if parts is NotImplemented else parts


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Boxed) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    boxes = [one for one in tensors if isinstance(one, Boxed)]
    name = func.overloadpacket.__name__
    ran[name] += bool(boxes)
    if boxes and name not in MIXING:
        for one in tensors:
            # a number of the host may meet tensors of any device
            if not isinstance(one, Boxed) and one.dim() > 0:
                raise RuntimeError(f"{func}: {tuple(one.shape)} on the host, others on {NAME}")
    asked = kwargs.get("device")
    there = bool(boxes) if asked is None else torch.device(asked).type == NAME
    on_host = tree_map(lambda x: HOST if isinstance(x, torch.device) else _held(x), (args, kwargs))
    draws = there and torch.Tag.nondeterministic_seeded in func.tags
    with SANDBOX.drawing() if draws else nullcontext():
        made = func(*on_host[0], **on_host[1])
    for box in boxes:
        # views made in place, and results that were given too small
        if box.shape != box.held.shape or box.stride() != box.held.stride():
            with no_dispatch():
                box.as_strided_(box.held.shape, box.held.stride(), box.held.storage_offset())
    if name == "copy_":
        return args[0]
    known = {id(box.held): box for box in boxes}  # what works in place gives back what it was given

    def boxed(one: Any) -> Any:
        if not isinstance(one, Tensor) or not there:
            return one
        if id(one) in known:
            return known[id(one)]
        # a view is for inference alone where what it is of is
        with torch.inference_mode(one.is_inference()):
            return Boxed(one)

    return tree_map(boxed, made)


def _empty(size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return Boxed(torch.empty(size, dtype=dtype))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return Boxed(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _held(target).copy_(_held(source))
    return target


class _Generator:
    """Makes generators of the host, for whatever device they are asked."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        return _HostGenerator()


OPERATORS = torch.library.Library("aten", "IMPL")
"""what torch calls without a tensor of the device, or from C++; lives as long as the process"""


def install() -> None:
    """Let this process have the second device, for good."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, SANDBOX)
    # else weights that two modules share would be two after Module.to
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.Generator = _Generator  # type: ignore[assignment, misc]
    for name, operator in (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("_copy_from", _copy_from),
    ):
        OPERATORS.impl(name, operator, "PrivateUse1")


def _said(words: Sequence[str]) -> dict[str, Any]:
    """Exit code of a command line, what it wrote, and how many operators the device ran."""
    from everyformer.cli import main

    out, err = io.StringIO(), io.StringIO()
    ran.clear()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "ran": ran.total()}


if __name__ == "__main__":
    install()
    if sys.argv[1:] == ["--lines"]:
        WITHOUT_DOUBLES.add(NAME)
        print(json.dumps([_said(words) for words in json.load(sys.stdin)]))
    else:
        from everyformer.cli import main

        sys.exit(main(sys.argv[1:]))
