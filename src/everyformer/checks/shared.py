"""The laws of `sequence_laws` on a member: its cases, and its whole models, as subjects of these.

A member's mixers compute in the dtype that they are given, draw from torch alone, are one graph for
any length, and give zeros for rows of nothing: their subjects are `strict`.
"""

import contextlib
import functools
import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from everyformer.checks.cases import Case, cases, small_model
from everyformer.checks.check import TOLERANCE
from everyformer.checks.subjects import MemberMixer
from everyformer.core.mask import Mask
from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.trials import LONGEST, WIDTH
from everyformer.training.saved import load_model, save_model
from sequence_laws.causality import LONG
from sequence_laws.inputs import Inputs
from sequence_laws.subject import TRIED, Subject

COST_WIDTH, COST_LENGTHS = 96, (2048, 4096)
"""beside which no block of a fixed size is the largest tensor"""
WHOLE = ("gradients", "saving", "determinism")
"""laws of whole models"""
STREAMED = 17
"""tokens of the longest text that comes in pieces, beyond windows of cases"""
DEFAULTS = "compiles-fully"
"""the law that is tried on a member's defaults alone"""
SPARED = re.compile(r"biases\.key|position\.table|memory\.compress|blocks\.1\.mixer\.summary")
"""weights without a gradient: a bias that all keys have cancels in the softmax, a first segment
compresses nothing, nothing reads the last layer's global tokens"""
SHORT: dict[str, dict[str, Any]] = {
    "sinkhorn": {"block_size": 2},
    "linformer-chunked": {"causal_chunk": 3, "k": 2},
    "memorizing": {"slots": 2},
    "longformer": {"window": 4, "global_tokens": 2},
}
"""options with which twelve tokens are more than one block or segment"""


class CaseMixer(MemberMixer):
    """A mixer of a case, on a device, compared in a dtype."""

    strict = True
    pools = False

    def __init__(
        self,
        case: Case,
        device: str,
        wide: torch.dtype,
        *,
        width: int = WIDTH,
        length: int = LONGEST,
    ) -> None:
        sizes = {"width": width, "length": length}
        mixer = case.mixer(wide, device, **sizes)
        options = "".join(f", {k}={v!r}" for k, v in case.options.items())
        build = (
            "from everyformer.checks.cases import Case",
            f"case = Case(ef.info({case.member.name!r}), dict({options[2:]}), {case.causal})",
            f"model = case.mixer(torch.float64, width={width}, length={length})",
        )
        causal = case.causal and mixer.non_causal_reason is None
        known = {"causal": causal, "build": build, "place": ".y"}
        super().__init__(mixer, str(case), Inputs(width=width), **known)
        self.case, self.device, self.wide = case, device, wide
        longest = [part.max_length for part in mixer.modules() if isinstance(part, Mixer)]
        self.longest = min([length, *filter(None, longest)])
        claims = {"operations": case.member.cost.time, "largest tensor": case.member.cost.memory}
        self.claims = {what: _between(n, what) for what, n in claims.items() if n is not None}
        self.spans = COST_LENGTHS

    @functools.cached_property
    def _lengths(self) -> list[int]:
        return [length for length in TRIED if length <= self.longest]

    @property
    def _trained(self) -> list[int]:
        return self._lengths

    def takes(self, length: int, training: bool = False) -> bool:
        """True up to its longest text."""
        return length <= self.longest

    def max_length(self) -> int:
        """Its longest text."""
        return self.longest

    def marks(self) -> list[int]:
        """None: windows and blocks of cases are small."""
        return []

    def exactly(self) -> AbstractContextManager[None]:
        """As it is: it computes in the dtype of its inputs."""
        return contextlib.nullcontext()

    def converted(self, model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
        """In a dtype."""
        return model.to(dtype)

    def bound(
        self, x: Tensor, padding_mask: Tensor | None = None, *, training: bool = False
    ) -> float:
        """Of float64 as of any subject; of others as in the members' own laws."""
        if self.wide is torch.float64:
            return super().bound(x, padding_mask, training=training)
        largest = float(self.exact(x, padding_mask, training=training).abs().max())
        return TOLERANCE[self.wide] * max(1.0, largest)

    def room(self, x: Tensor) -> float:
        """Of float32 as in the members' own laws."""
        return TOLERANCE[torch.float32] * max(1.0, float(self.exact(x).abs().max()))

    def of_length(self, length: int) -> Self:
        """The case, made for texts of a length."""
        return type(self)(self.case, self.device, self.wide, width=COST_WIDTH, length=length)

    def placed(self, x: Tensor) -> Tensor:
        """On its device."""
        return x.to(self.device)

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """One pass on its device."""
        return _back(
            super().call(
                model, self.placed(x), None if padding_mask is None else self.placed(padding_mask)
            )
        )

    def packed(self, model: nn.Module, x: Tensor, documents: Tensor) -> Any:
        """One pass on its device."""
        return _back(super().packed(model, self.placed(x), self.placed(documents)))

    def feed(
        self, model: Any, x: Tensor, cache: Any, mask: Mask | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs, and the state behind them."""
        y, state = super().feed(model, self.placed(x), cache, mask)
        return y.cpu(), state

    def feed_masked(
        self, model: nn.Module, x: Tensor, cache: Any, padding_mask: Tensor
    ) -> tuple[Tensor, Any]:
        """As `feed`, with a mask of the new tokens."""
        return super().feed_masked(model, x, cache, self.placed(padding_mask))

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """The state of the rows in another order."""
        return super().rows_of(cache, self.placed(rows))

    def reset(self, cache: Any, rows: Tensor) -> Any:
        """The state, in which some rows start over."""
        return super().reset(cache, self.placed(rows))


def _back(out: Any) -> Any:
    """Outputs on the host."""
    return out._replace(y=out.y.cpu())


def _between(power: float, what: str) -> tuple[float, float]:
    """Powers that a claim stands for: of 1 that twice the length doubles the count, of more that it
    more than doubles it, since projections beside the mixing are linear. Blocks of a fixed size can
    be the largest tensor."""
    low, high = (1.9, 2.1) if power == 1 else (2.1, 4.1)
    return math.log2(1 if power == 1 and what != "operations" else low), math.log2(high)


@dataclass(frozen=True)
class Given(Inputs):
    """The inputs of a batch, whatever is requested."""

    batch: Tensor | None = None

    def draw(self, rows: int, length: int, seed: int = 0) -> Tensor:
        """The batch."""
        assert self.batch is not None
        return self.batch


class WholeCase(Subject):
    """A small whole model of a member for a task, on its batch, in float32."""

    strict = pools = True
    wide = torch.float32
    _lengths = _trained = (12,)  # type: ignore[assignment]
    idle, idles = SPARED, "have none by right"

    def __init__(self, member: Member, task: str, device: str, **more: Any) -> None:
        def make() -> nn.Module:
            return small_model(member, task, **more)[0].to(device)

        model, inputs, targets = small_model(member, task, **more)
        named = f"{member.name}, {task}"
        super().__init__(model.to(device), named, Given(batch=inputs), causal=False, make=make)
        self.targets, self.device = targets.to(device), device

    def call(self, model: Any, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """One pass, with its loss."""
        x = x.to(self.device)
        return model(x, targets=self.targets, **model.extra_inputs(x))

    def outputs(self, result: Any, x: Tensor) -> Tensor:
        """Its logits."""
        logits: Tensor = result.logits
        return logits.flatten(1)[:, None].cpu()

    def objective(self, model: nn.Module, x: Tensor) -> Tensor:
        """The task's loss, with all others."""
        loss: Tensor = self.call(model, x).loss
        return loss

    def converted(self, model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
        """As it is."""
        return model

    def stored(self, made: nn.Module, other: nn.Module) -> nn.Module:
        """Saved and loaded."""
        with tempfile.TemporaryDirectory() as folder:
            save_model(made, Path(folder) / "model")
            return load_model(Path(folder) / "model").to(self.device)

    def bound(
        self, x: Tensor, padding_mask: Tensor | None = None, *, training: bool = False
    ) -> float:
        """Nothing on the host; other devices add in whatever order they come to it."""
        return 0.0 if torch.device(self.device).type == "cpu" else TOLERANCE[torch.float32]


def subjects(
    member: Member, law: str, device: str, wide: torch.dtype, *, few: bool = False
) -> Iterator[Subject]:
    """Subjects of a law: whole models of each task, or mixers of cases.

    Args:
        few: of tasks the first, and of cases the first of each form.
    """
    if law in WHOLE:
        tasks = member.tasks[:1] if few or law == "determinism" else member.tasks
        more: dict[str, Any] = (
            SHORT.get(member.name, {}) if law == "gradients" else {"dropout": 0.1}
        )
        yield from (WholeCase(member, task, device, **more) for task in tasks)
    elif law == "cost":
        case, length = Case(member, {}, member.can("causal")), COST_LENGTHS[0]
        yield CaseMixer(case, "cpu", torch.float32, width=COST_WIDTH, length=length)
    else:
        every = [*cases(member)]
        # what is carried differs by options
        if (few and law != "streaming") or law == "compiles":
            every = [*{case.causal: case for case in reversed(every)}.values()]
        usual = Case(member, {}, member.can("causal"))
        if law == DEFAULTS:
            every = [usual]
        elif law == "compiles" and usual not in every:
            every.append(usual)
        if law in ("causality", "streaming"):
            every = [case for case in every if case.causal]
        for case in every:
            # memories of all that trials read hold no longer texts
            length = LONG if law == "causality" else LONGEST
            subject = CaseMixer(case, device, wide, length=length)
            subject.exports = case == usual
            if law == "streaming":
                subject.longest = STREAMED
            yield subject
