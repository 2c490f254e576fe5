"""Checks of a mixer's output, which is refused in the mixer's name.

A wrong shape would be broadcast, and train. Only shapes, dtypes and devices are compared, which
costs microseconds and leaves one graph.
"""

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from everyformer.core.devices import autocasts
from everyformer.core.errors import PluginError
from everyformer.core.foreign import source
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State


class Named(Protocol):
    """A mixer, as far as its name goes."""

    name: ClassVar[str]
    output_width: int | None


def check_output(mixer: Named, method: str, out: Any, x: Tensor, state: State | None) -> None:
    """Refuse what ``method`` made of ``x`` (batch, length, width) and ``state`` if it is no
    `MixerOutput` of the same sizes.

    Raises:
        PluginError: what came, what is expected, and where the method is.
    """
    if not isinstance(out, MixerOutput):
        raise _refused(mixer, method, _kind(out), "a MixerOutput(y, state, losses)")
    check_like(mixer, method, out.y, x)
    if not isinstance(out.losses, dict):
        raise _refused(mixer, method, f"{_kind(out.losses)} as losses", "a dictionary")
    for name, loss in out.losses.items():
        if not isinstance(loss, Tensor) or loss.dim() > 0:
            kind = _sizes(loss) if isinstance(loss, Tensor) else _kind(loss)
            raise _refused(mixer, method, f"{kind} as the loss '{name}'", "a scalar tensor")
    if state is not None and out.state is not state:
        check_state(mixer, method, out.state, state.seen.shape[0], type(state))


def check_like(mixer: Named, method: str, y: Any, x: Tensor) -> None:
    """Refuse outputs that have not the rows, tokens, dtype and device of ``x``, or another width
    than they must; autocast has another dtype."""
    if not isinstance(y, Tensor):
        raise _refused(mixer, method, f"{_kind(y)} as y", "a tensor")
    shape = (*x.shape[:2], mixer.output_width or x.shape[2])
    free = autocasts(x.device.type)
    if y.shape != shape or y.device != x.device or (y.dtype != x.dtype and not free):
        raise _refused(mixer, method, f"y {_sizes(y)}", f"{shape}, for x {_sizes(x)}")


def check_state(
    mixer: Named, method: str, state: Any, batch: int, kind: type[State] = State
) -> None:
    """Refuse a state of another kind or of another number of rows."""
    if not isinstance(state, kind) or not hasattr(state, "seen"):
        raise _refused(mixer, method, f"{_kind(state)} as the state", f"a {kind.__name__}")
    tensors = [state.seen] if torch.compiler.is_compiling() else vars(state).values()
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.shape[:1] != (batch,):
            raise _refused(mixer, method, f"a state with {_sizes(tensor)}", f"{batch} rows in each")


def _refused(mixer: Named, method: str, output: str, expected: str) -> PluginError:
    code = getattr(type(mixer), method)
    return PluginError(
        f"the mixer '{mixer.name}' ({source(code)}, {code.__qualname__}) gave {output}, "
        f"not {expected}"
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _sizes(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)} of {dtype} on {tensor.device}"
