"""A model under test, as the laws see it: copies, lengths, one pass and its rounding."""

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.calls import Call, PlainCall
from sequence_laws.clashes import is_clash
from sequence_laws.foreign import source
from sequence_laws.inputs import Inputs, first, seed, seed_all
from sequence_laws.rounding import GAP, ROOM, doubled, largest, rounding
from sequence_laws.unsaved import stray
from sequence_laws.verdict import Inapplicable, OutputsError, ShortError

TRIED = (1, 2, 3, 5, 8, 9, 12, 16, 17, 24, 32, 33, 64, 65)
"""lengths of which a model takes some or all"""
YOURS = ("model = ...  # yours",)
"""lines that make a model that someone holds"""
DEEP = (129, 257)
"""others, of a deep look"""
_MARKS = re.compile("window|block|chunk|bucket|span|stride|segment")
_SPANS = re.compile("^(max_?(seq|position|len|source|target)|block_size|context_|n_positions|seq_)")


class Subject(Call):
    """A module that is called with its inputs alone; other ways to call derive from it.

    Args:
        model: it; the laws work on copies.
        name: of the model in verdicts.
        inputs: what it reads.
        causal: whether an output may depend on earlier inputs and its own alone.
        build: lines of Python that make ``model``; none for a module that someone holds.
        place: of the outputs in what it gives, as `place` says.
        make: makes another one with other random weights, where that can be done.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        inputs: Inputs,
        *,
        causal: bool = True,
        build: Sequence[str] = (),
        place: str = "",
        make: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.model, self.name, self.inputs, self.causal = model, name, inputs, causal
        self.build = tuple(build) or YOURS
        self.place, self.make = place, make
        self._bounds: dict[tuple[int, ...], float] = {}
        self._copies: dict[tuple[bool, torch.dtype], nn.Module] = {}

    def contexts(self) -> Iterator[tuple[str, Self]]:
        """The model with what else it may read next to its inputs (states of an encoder), the same
        for every row, with words for each."""
        return iter(())

    def encodings(self) -> Iterator[tuple[str, Self]]:
        """The model called with the same inputs in another form, with words for each."""
        return iter(())

    def variants(self) -> Iterator[tuple[str, Self]]:
        """The model in each way in which it can compute the same, with a word for each."""
        yield "", self

    def flexible(self) -> Iterator[Self]:
        """The model with flex attention, where its library has a word for that; an error of any
        kind where its class refuses it."""
        return iter(())

    @functools.cached_property
    def called_plainly(self) -> list[PlainCall]:
        """`plain_calls`, made once."""
        return [*self.plain_calls()]

    @functools.cached_property
    def with_contexts(self) -> list[tuple[str, Self]]:
        """`contexts`, made once."""
        return [*self.contexts()]

    @functools.cached_property
    def implementations(self) -> list[tuple[str, Self]]:
        """`variants`, made once, which know what lengths it takes."""
        self.lengths(), self.lengths(training=True)
        return [*self.variants()]

    def of_length(self, length: int) -> Self:
        """The model as it is made for texts of a length, if that changes what it costs."""
        return self

    def again(self) -> Self:
        """The same, which remembers nothing of how its model was."""
        other = copy.copy(self)
        other._bounds, other._copies = {}, {}
        for name in ("called_plainly", "implementations", "with_contexts", "_look"):  # of it alone
            vars(other).pop(name, None)
        return other

    def objective(self, model: nn.Module, x: Tensor) -> Tensor:
        """A training loss: the mean square of the outputs."""
        return self.called(model, x).square().mean()

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Names and values that the model and its parts were configured with."""
        for module in self.model.modules():
            config = getattr(module, "config", None)
            known = vars(config) if hasattr(config, "__dict__") else {}
            yield from {**known, **vars(module)}.items()

    def marks(self) -> list[int]:
        """Sizes of windows, blocks and the like, around which errors sit."""
        named = ((k, v) for k, v in self.settings() if _MARKS.search(k) and type(v) is int)
        return sorted({value for _, value in named if 1 < value <= 64})

    def max_length(self) -> int | None:
        """The longest input that the model was made for, where it says so."""
        named = (v for k, v in self.settings() if _SPANS.search(k) and type(v) is int and v > 1)
        return min(named, default=None)

    @functools.cached_property
    def _lengths(self) -> list[int]:
        around = [n for mark in self.marks() for n in (mark - 1, mark, mark + 1, 2 * mark + 1)]
        more = DEEP if self.depth == "deep" else ()
        own = (n for n in [self.max_length()] if n and n <= 129)
        every = sorted({*TRIED, *more, *around, *own})
        return self._taken(every)

    @functools.cached_property
    def _trained(self) -> list[int]:
        return self._taken(self._lengths, training=True)

    @functools.cached_property
    def pools(self) -> bool:
        """Whether it gives one output a row (B, C) or (B,), as large for every length."""
        given: list[tuple[int, torch.Size]] = []
        for length in (12, 16, *TRIED, self.max_length() or 1):
            # a length that it refuses, as in `_taken`
            with contextlib.suppress(Exception), torch.no_grad():
                y = first(self.call(self.copy(torch.float32), self.inputs.draw(2, length)))
                given.append((length, y.shape))
            if len(given) == 2:
                break
        if len({shape for _, shape in given}) != 1 or len(given[0][1]) > 2:
            return False
        return len(given) == 2 or given[0][1][1:] != given[0][:1]

    def lengths(self, training: bool = False) -> list[int]:
        """Lengths that the model takes, in a mode, of 1 to 65 and those around `marks`."""
        return self._trained if training and self.doubles else self._lengths

    def usual(self, training: bool = False) -> int:
        """A length that it takes, of 9 or more where there is one.

        Raises:
            Inapplicable: there is none.
        """
        every = self.lengths(training)
        if not every:
            mode = " in training" if training else ""
            raise Inapplicable(f"it takes none of the lengths that were tried{mode}", "undecided")
        return next((length for length in every if length >= 9), every[-1])

    def takes(self, length: int, training: bool = False) -> bool:
        """True if it takes inputs of a length."""
        return bool(self._taken([length], training))

    def _taken(self, lengths: Sequence[int], training: bool = False) -> list[int]:
        """Those of ``lengths`` that it takes, in one row or else in two; after each that it does
        not, a copy is asked again."""
        for rows in (1, 2):
            taken, model = list[int](), None
            for length in lengths:
                try:
                    model = self.copy(torch.float32, training) if model is None else model
                    self.run(model, self.inputs.draw(rows, length))
                    taken.append(length)
                except Exception:  # a model may refuse in any way; the law of lengths says how
                    model = None
            if taken:
                break
        return taken

    def copy(self, dtype: torch.dtype | None = None, training: bool = False) -> nn.Module:
        """A copy of the model in a dtype (default: `wide`), for evaluation or for training."""
        if not self.doubles:
            return self.model
        dtype = dtype or self.wide
        try:
            made = copy.deepcopy(self.model)
        except Exception as error:
            raise Inapplicable(f"it cannot be copied: {error}", "undecided") from error
        return self.converted(made, dtype).train(training)

    def converted(self, model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A model of this kind in a dtype, with tables that were never rounded to another."""
        model = model.to(dtype)
        for tensor in stray(model).values() if dtype is torch.float64 and self.strays else ():
            tensor.data = tensor.data.to(dtype)
        for name, table in self._tables.items() if dtype is torch.float64 else ():
            model.get_buffer(name).copy_(table)
        return model

    @functools.cached_property
    def strays(self) -> list[str]:
        """Names of its tensors outside parameters and buffers, where it does not run in float64
        without them being moved, which is done here and not by ``model.double()``."""
        names = [*stray(self.model)]
        try:
            if names:
                model, x = copy.deepcopy(self.model), self.inputs.draw(2, self.usual())
                with torch.no_grad(), self.exactly():
                    self.run(model.to(torch.float64).eval(), self.widened(x))
        except Exception as error:  # of any other kind, which is for the laws to say
            return names if is_clash(error) else []
        return []

    @functools.cached_property
    def _tables(self) -> dict[str, Tensor]:
        """Buffers that the model fills with numbers of its configuration, in float64: its own were
        rounded to float32, so that ways to the same numbers would differ by that."""
        if self.make is None:
            return {}
        with doubled():
            fresh = dict(self.make().named_buffers())
        rounded = ((n, b) for n, b in self.model.named_buffers() if b.is_floating_point())
        pairs = ((n, fresh.get(n), mine.double()) for n, mine in rounded if mine.numel())
        return {
            name: table
            for name, table, mine in pairs
            if table is not None
            and table.shape == mine.shape
            and float((table - mine).abs().max()) <= GAP * float(mine.abs().max())
        }

    def exactly(self) -> AbstractContextManager[None]:
        """Within it the model computes in `wide` alone, whatever it asks for."""
        widens = self.doubles and self.wide is torch.float64
        return doubled() if widens else contextlib.nullcontext()

    def widened(self, x: Tensor) -> Tensor:
        """Features in `wide`, tokens as they are."""
        return x.to(self.wide) if x.is_floating_point() else x

    def placed(self, x: Tensor) -> Tensor:
        """Inputs on the device on which it computes."""
        return x

    def seed(self, number: int) -> None:
        """Start the random numbers over: those that it may draw from."""
        (seed_all if self.strict else seed)(number)

    def require_positions(self) -> None:
        """Raise `Inapplicable` where the model gives one output a row."""
        if self.pools:
            raise Inapplicable("it gives one output a row, and none at a position")

    def require_weights(self) -> None:
        """Raise `Inapplicable` where the model is as a file has it."""
        if not self.doubles:
            raise Inapplicable("its file has one dtype and no gradients")

    def run(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Outputs (B, L, channels) of one pass; random numbers are the same at each.

        Raises:
            OutputsError: the model gives another number of rows or positions.
        """
        self.seed(0)
        return self.called(model, x, padding_mask)

    def called(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """`run` with random numbers as they come."""
        return self.outputs(self.call(model, x, padding_mask), x)

    def outputs(self, result: Any, x: Tensor) -> Tensor:
        """Outputs (B, L, channels) in what the model gave; (B, 1, channels) where it `pools`."""
        y = first(result)
        if y.dim() < 3 and y.shape[:1] == x.shape[:1] and self.pools:
            return y.reshape(len(x), 1, -1)
        if y.shape[:2] != x.shape[:2]:
            inputs = f"inputs of (rows, positions) {tuple(x.shape[:2])}"
            error = self.shape_error(f"{tuple(y.shape)} for {inputs}")
            short = y.dim() > 1 and len(y) == len(x) and y.shape[1] < x.shape[1]
            raise ShortError(str(error), y.shape[1]) if short else error
        return y.flatten(2) if y.dim() > 2 else y[..., None]

    def shape_error(self, given: str) -> OutputsError:
        """The error of outputs that are ``given``."""
        where = source(type(self.model).forward)
        return OutputsError(
            f"{self.name} ({where}) gives {given}: expected an output at each position"
        )

    def exact(
        self, x: Tensor, padding_mask: Tensor | None = None, *, training: bool = False
    ) -> Tensor:
        """Outputs in `wide`, without gradients, of the model as it was made."""
        if not self.doubles:
            with torch.no_grad():
                return self.run(self.model, x, padding_mask).double()
        with torch.no_grad(), self.exactly():
            return self.run(self.fresh(training), self.widened(x), padding_mask).double()

    def fresh(self, training: bool = False, dtype: torch.dtype | None = None) -> nn.Module:
        """A copy in a dtype (default: `wide`) whose buffers are those of the model: in training
        they move."""
        key = training, dtype or self.wide
        if key not in self._copies:
            self._copies[key] = self.copy(dtype, training)
        made = self._copies[key]
        for name, buffer in self.model.named_buffers() if training else ():
            made.get_buffer(name).copy_(buffer)
        return made

    def bound(
        self, x: Tensor, padding_mask: Tensor | None = None, *, training: bool = False
    ) -> float:
        """The largest difference in `wide` that may be rounding (`sequence_laws.rounding`)."""
        key = (*x.shape, training, padding_mask is not None)
        if key not in self._bounds:
            y = self.exact(x, padding_mask, training=training)
            if not torch.isfinite(y).all():
                raise Inapplicable(
                    "its outputs are not finite: see the law of numbers", "undecided"
                )
            again = self.exact(x, padding_mask, training=training)
            if not torch.equal(y, again):  # the first pass of some builds what they pass through
                y, again = again, self.exact(x, padding_mask, training=training)
            if not torch.equal(y, again):
                raise Inapplicable("outputs differ from run to run: see determinism", "undecided")
            if self.doubles and self.wide is torch.float64:
                with torch.no_grad():
                    single = self.run(self.fresh(training, torch.float32), x, padding_mask)
                if not torch.isfinite(single).all():
                    raise Inapplicable(
                        "its outputs in float32 are not finite: see the law of numbers", "undecided"
                    )
                self._bounds[key] = GAP * rounding(single, y)
            else:
                self._bounds[key] = ROOM[self.wide] * largest(y)
        return self._bounds[key]

    def room(self, x: Tensor) -> float:
        """`bound` of what is computed in float32."""
        return self.bound(x) * (2.0**29 if self.wide is torch.float64 else 1)

    def share(self, x: Tensor) -> float:
        """`bound` as a share of the largest output."""
        return self.bound(x) / max(largest(self.exact(x)), 1e-300)

    def differentiable(
        self,
        model: nn.Module,
        x: Tensor,
        run: Callable[[nn.Module, Tensor], Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Vectors (B, L, d) that the model reads, and outputs that can be differentiated by them.

        Of tokens these are what each embedding gives that is given them: none where there is none.
        ``run`` is how it is called (default: in one pass).
        """
        run = run or self.run
        if not self.doubles:
            return [], run(model, x)
        if self.inputs.vocabulary is None:
            leaf = self.widened(x).requires_grad_()
            return [leaf], run(model, leaf.clone())
        leaves: list[Tensor] = []

        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if not inputs or output.dim() != 3 or not torch.equal(inputs[0], x):
                return None
            leaves.append(output.detach().requires_grad_())
            return leaves[-1].clone()  # which may be changed in place

        tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        hooks = [table.register_forward_hook(keep) for table in tables]
        y = run(model, x)
        for hook in hooks:
            hook.remove()
        return leaves, y

    def code(
        self, *lines: str, double: bool = True, training: bool = False, gradients: bool = False
    ) -> str:
        """A program: the model, and ``lines`` that use ``model`` and `call_code`."""
        mode = "train()" if training else "eval()"
        start = [line for line in self.build if line.startswith(("import ", "from "))]
        made = [line for line in self.build if line not in start]
        ready = [f"model = model.{'double().' * double}{mode}.requires_grad_({gradients})"]
        ready = ready if self.doubles else []
        wide = ["torch.set_default_dtype(torch.float64)"] * bool(double and self.strays)
        head = ["import torch", *start, *wide, "torch.manual_seed(0)", *made, *ready]
        return "\n".join([*head, *lines])
