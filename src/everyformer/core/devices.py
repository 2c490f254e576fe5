"""Devices of any kind: numbers that can be read or not, seeds, and autocast, which some have not.

On ``meta`` tensors have sizes and no numbers: what runs there reads none, and so makes no other
device wait for the host.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, UnsupportedError

AUTOCASTING = frozenset(
    kind
    for kind in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "privateuseone")
    if torch.amp.is_autocast_available(kind)
)
"""kinds of device that have it; asked once, since compilers do not follow the question"""


CPU = torch.device("cpu")
WITHOUT_DOUBLES = {"mps"}
"""kinds of device that have no float64"""


MORE = 16
"""times as much is worked on at once where operations are started from afar: a GPU takes as long to
start one as to compute a million numbers, and has no cache to stay within"""


def at_once(numbers: int, device: torch.device) -> int:
    """``numbers`` that a CPU works on at once, or more on another device; ``meta`` stands for
    whatever comes later and counts as a CPU does."""
    return numbers if device.type in ("cpu", "meta") else MORE * numbers


class Casting(Protocol):
    """Autocast of a kind of device that torch's own does not know."""

    def on(self) -> AbstractContextManager[Any]:
        """A block in which it casts."""

    def off(self) -> AbstractContextManager[Any]:
        """A block inside in which it does not."""


stand_ins: dict[str, Casting] = {}
"""by kind of device; there are some while a law looks (`everyformer.checks.casting`)"""


def pick_device(device: str, local_rank: int | None = None) -> torch.device:
    """The device of that name; ``auto`` is an accelerator where there is one, else the CPU.

    Raises:
        ConfigError: torch knows no such device, it is not on this machine, or has no numbers.
    """
    if device == "auto":
        result = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if result is None else result.type
    try:
        chosen = torch.device(device)
        if local_rank is not None and chosen.type == "cuda":
            chosen = torch.device("cuda", local_rank)
            torch.cuda.set_device(chosen)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{device}' cannot be used here: {reason}") from error
    if chosen.type == "meta":
        raise ConfigError("device 'meta' cannot be used here: its tensors have no numbers")
    return chosen


def check_compiler(device: torch.device) -> None:
    """Raises `UnsupportedError` where torch.compile would need a C++ compiler that is not there."""
    if device.type != "cpu":
        return
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError, OSError) as error:
        raise UnsupportedError(
            "compiling needs a C++ compiler, and none was found here: install one (g++ or clang), "
            "or leave out `compile` (weights in 8 bits need one, too)"
        ) from error


def accelerator_name() -> str | None:
    """The accelerator that ``auto`` picks, as its maker calls it where torch tells; None: none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return None
    return torch.cuda.get_device_name() if found.type == "cuda" else found.type


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has none."""
    return torch.float32 if device.type in WITHOUT_DOUBLES else torch.float64


def readable(t: Tensor) -> bool:
    """Whether code may branch on numbers of ``t``: no compiler follows it, and there are some."""
    return not (torch.compiler.is_compiling() or t.is_meta)


def random_state(device: torch.device) -> Tensor:
    """State of the generator that draws on ``device``, to be set again later."""
    if device.type in ("cpu", "meta"):
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Let ``device`` draw again what followed on `random_state`."""
    if device.type in ("cpu", "meta"):
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """A block behind which random numbers, the host's and the device's, go on as if there had been
    none."""
    if device.type in ("cpu", "meta"):
        return torch.random.fork_rng([])
    return torch.random.fork_rng([device], device_type=device.type)


def synchronise(device: torch.device | str) -> None:
    """Wait for the work that the device was given; the host itself does all at once."""
    device = torch.device(device)
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def autocasts(kind: str) -> bool:
    """Whether products on a device of this kind are computed in half precision now."""
    return kind in stand_ins or (kind in AUTOCASTING and torch.is_autocast_enabled(kind))


def full_precision(kind: str) -> AbstractContextManager[None]:
    """Autocast switched off on devices of this kind."""
    if kind in stand_ins:
        return stand_ins[kind].off()
    if kind not in AUTOCASTING:
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def as_now(kind: str) -> Callable[[], AbstractContextManager[None]]:
    """Autocast as it is now, to be so again later.

    Without its cache: casts made without a graph must not be read by what runs with one.
    """
    if kind in stand_ins:
        return stand_ins[kind].on
    if kind not in AUTOCASTING:
        return nullcontext
    now = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, enabled=now[0], dtype=now[1], cache_enabled=False)


class Constant:
    """Numbers of the host that never change, copied once to each device that asks for them.

    Args:
        numbers: on the CPU.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        self.copies: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The numbers on ``device``."""
        if device == self.numbers.device:
            return self.numbers
        return self.copies[device] if self._copied(device) else self.numbers.to(device)

    @torch.compiler.assume_constant_result
    def _copied(self, device: torch.device) -> bool:
        """Whether there is a copy now; a tracer's own ends with it and is not kept.

        A compiler that follows runs this while it traces, so that the graph reads the copy: one
        that it made by itself would be made at every call, and found there once would be another
        graph.
        """
        if device not in self.copies:
            with torch.inference_mode(False):
                copy = self.numbers.to(device)
            if type(copy) is not Tensor:
                return False
            self.copies[device] = copy
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "copies": {}}
