"""Checks of what mixers and other genes give, which is refused in the name of who gave it.

A wrong shape would be broadcast, and train. Only shapes, dtypes and devices are compared, which
costs microseconds and leaves one graph.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from everyformer.core.devices import autocasts
from everyformer.core.errors import PluginError
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from sequence_laws.foreign import source


class Named(Protocol):
    """An alternative of a gene, as far as its name goes."""

    name: ClassVar[str]


class Mixing(Named, Protocol):
    """A mixer, as far as its output goes."""

    output_width: int | None


def check_output(mixer: Mixing, method: str, out: Any, x: Tensor, state: State | None) -> None:
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
        check_state(mixer, method, out.state, state.num_tokens.shape[0], type(state))


def check_like(mixer: Mixing, method: str, y: Any, x: Tensor) -> None:
    """Refuse outputs that have not the rows, tokens, dtype and device of ``x``, or another width
    than they must; autocast has another dtype."""
    check_shape(mixer, method, y, x, (*x.shape[:2], mixer.output_width or x.shape[2]), "mixer")


def check_shape(
    part: Named,
    method: str,
    y: Any,
    x: Tensor,
    shape: Sequence[int | None],
    kind: str,
    cast: bool = False,
) -> None:
    """Refuse what is no tensor of a ``shape``, or has another device than ``x``, or another dtype
    though there is no autocast and no later ``cast``; ``kind`` is the part's gene."""
    if not isinstance(y, Tensor):
        raise _refused(part, method, f"{_kind(y)} as y", "a tensor", kind)
    free = cast or autocasts(x.device.type)
    if y.shape != shape or y.device != x.device or (y.dtype != x.dtype and not free):
        expected = f"{tuple(shape)}, for x {_sizes(x)}"
        raise _refused(part, method, f"y {_sizes(y)}", expected, kind)


def check_fed(part: Named, out: Any, x: Tensor, state: State | None) -> None:
    """Refuse what a feed-forward made of ``x`` (batch, length, width) and ``state`` if it is no
    output of the same sizes with a state."""
    if not isinstance(out, tuple) or len(out) != 2:
        raise _refused(part, "forward", _kind(out), "a pair (y, state)", "feedforward")
    check_shape(part, "forward", out[0], x, x.shape, "feedforward")
    if state is not None:
        check_state(part, "forward", out[1], state.num_tokens.shape[0], type(state), "feedforward")


def check_embedded(part: Named, y: Any, x: Tensor) -> None:
    """Refuse what a position adds to ``x`` (batch, length, width) if it is of other sizes, in any
    dtype; one row may be for all."""
    rows = 1 if isinstance(y, Tensor) and y.shape[:1] == (1,) else x.shape[0]
    check_shape(part, "embed", y, x, (rows, *x.shape[1:]), "position", cast=True)


def check_placed(part: Named, method: str, y: Any, given: Any, heads: int | None) -> None:
    """Refuse what a position made of ``given`` queries or keys, or of distances for each head; it
    may have no slopes."""
    if method == "rotate":
        check_shape(part, method, y, given, given.shape, "position")
    elif method == "by_distance":
        check_shape(part, method, y, given, (heads, *given.shape), "position", cast=True)
    elif y is not None:
        x = y if isinstance(y, Tensor) else torch.empty(0)
        check_shape(part, method, y, x, (heads,), "position", cast=True)


def check_joined(part: Named, after: Any, stream: Any) -> None:
    """Refuse what a residual connection made of a ``stream`` if it is another kind of stream."""
    if isinstance(stream, Tensor):
        check_shape(part, "join", after, stream, stream.shape, "residual")
    elif type(after) is not type(stream):
        raise _refused(part, "join", _kind(after), _kind(stream), "residual")


def check_state(
    part: Named,
    method: str,
    state: Any,
    batch: int,
    expected: type[State] = State,
    kind: str = "mixer",
) -> None:
    """Refuse a state of another kind or of another number of rows."""
    if not isinstance(state, expected) or not hasattr(state, "num_tokens"):
        name = f"a {expected.__name__}"
        raise _refused(part, method, f"{_kind(state)} as the state", name, kind)
    tensors = [state.num_tokens] if torch.compiler.is_compiling() else vars(state).values()
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.shape[:1] != (batch,):
            rows = f"{batch} rows in each"
            raise _refused(part, method, f"a state with {_sizes(tensor)}", rows, kind)


def _refused(
    part: Named, method: str, output: str, expected: str, kind: str = "mixer"
) -> PluginError:
    code = getattr(type(part), method)
    return PluginError(
        f"the {kind} '{part.name}' ({source(code)}, {code.__qualname__}) gave {output}, "
        f"not {expected}"
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _sizes(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)} of {dtype} on {tensor.device}"
