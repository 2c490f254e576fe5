"""What tests of many folders do alike: numbers from a seed, closeness, mixers and models."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import everyformer as ef
from everyformer.blocks.feedforward import FeedForward
from everyformer.blocks.passing import StackRun
from everyformer.cli.names import full_name
from everyformer.core.mixer import Mixer
from everyformer.core.tasks import LM
from everyformer.genes.feedforward import FEEDFORWARDS
from everyformer.genes.residuals.reversible import Replayed
from everyformer.models.base import Model

Module = TypeVar("Module", bound=nn.Module)

graphs_take_all_pairs = pytest.mark.filterwarnings(
    "ignore::everyformer.core.dispatch.AllPairsWarning"
)
"""of tests that ask for the results of graphs alone, in which a pattern may become a mask"""


def overridden(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """``words`` of a command line less the flags that ``others`` give too, and the others."""

    def name(flag: str) -> str:
        return full_name(flag).partition("=")[0]

    given = {name(word) for word in others if word.startswith("--")}
    kept, gone = list[str](), False
    for word in words:
        gone = name(word) in given if word.startswith("--") else gone
        kept += [] if gone else [word]
    return [*kept, *others]


def draw(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers of the seed alone, the same in every dtype but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    """Equal to ``tolerance``, absolute and relative; the default is for float64."""
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def build_mixer(
    name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> Mixer:
    """`everyformer.create_mixer` with weights from the seed, in evaluation."""
    torch.manual_seed(seed)
    return ef.create_mixer(name, **options).to(dtype).eval()


def build_model(
    name: str, task: str = LM, *, seed: int = 0, dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Model:  # fmt: skip
    """`everyformer.create_model` with weights from the seed, in evaluation."""
    torch.manual_seed(seed)
    return ef.create_model(name, task, **options).to(dtype).eval()


def every_one(pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Some of the pairs (task, member), among which each task and each member is."""
    counts, chosen = Counter[str](), set()
    for member in dict.fromkeys(member for _, member in pairs):
        task = min((t for t, m in pairs if m == member), key=lambda t: counts[t])
        counts[task] += 1
        chosen.add((task, member))
    return chosen | {pair for pair in reversed(pairs) if not counts[pair[0]]}


def covering(**factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Cases in which every two values of different factors meet, in place of the product of all.

    Faults lie where two conditions meet; of each pair that has not met yet a case is made, whose
    other values are those that meet the most that they have not.
    """
    names, values = [*factors], [list(each) for each in factors.values()]
    cells = [[(n, k) for k in range(len(each))] for n, each in enumerate(values)]
    left = {pair for two in combinations(cells, 2) for pair in product(*two)}
    cases = []
    while left:
        case = dict(min(left))
        for n, column in enumerate(cells):
            if n not in case:
                met = [
                    sum(tuple(sorted((c, cell))) in left for c in case.items()) for cell in column
                ]
                case[n] = met.index(max(met))
        left -= set(combinations(sorted(case.items()), 2))
        cases.append([values[n][case[n]] for n in range(len(values))])
    return pytest.mark.parametrize(names, cases, ids=str)


def with_gradients(
    y: Tensor, inputs: Sequence[Tensor], seed: int = 9, retain: bool = True
) -> list[Tensor]:
    """``y``, and the gradients of its sum, weighed by numbers of the seed, to ``inputs``; a
    compiled graph does not ``retain`` what it needs for them."""
    weight = draw(*y.shape, seed=seed, dtype=y.dtype)
    grads = torch.autograd.grad(y, inputs, weight, retain_graph=retain, materialize_grads=True)
    return [y, *grads]


def in_pieces(made: Any, x: Tensor, sizes: int | Sequence[int], state: Any = None) -> Any:
    """Outputs of a text that is read in pieces of these sizes, and the state behind it."""
    state, parts = made.init_state(len(x)) if state is None else state, []
    for piece in x.split(sizes, 1):
        out = made(piece, state=state)
        state = out.state
        parts.append(out.y if hasattr(out, "y") else out.logits)
    return torch.cat(parts, 1), state


def feeds(
    name: str = "gelu", dropout: float = 0.0, **options: Any
) -> Callable[[Mixer], FeedForward]:
    """Makes the feed-forward ``name`` of a mixer's layer."""
    kind: Any = FEEDFORWARDS.get(name)

    def make(mixer: Mixer) -> FeedForward:
        own = kind.Options(**options)
        made: FeedForward = kind(own, width=mixer.width, causal=mixer.causal, dropout=dropout)
        return made

    return make


def both_ways(run: Callable[[], Any]) -> list[Any]:
    """Results of ``run()`` with layers rebuilt in the backward pass, and with all of them kept."""
    results = []
    for way in (Replayed.forward, StackRun.forward):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Replayed, "forward", way)
            torch.manual_seed(4)
            results.append(run())
    return results


def saved_bytes(run: Callable[[], Tensor], known: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd keeps for the backward pass of ``run()``, ``known`` not counted, nor what
    it keeps for another pass too: what dropout is read from."""
    passes: list[tuple[dict[int, int], Tensor]] = []
    for _ in range(2):
        kept: dict[int, int] = {}

        def pack(t: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            passes.append((kept, run()))
    assert all(y.requires_grad for _, y in passes)
    aside = {t.untyped_storage().data_ptr() for t in known} | {*passes[0][0]}
    return sum(size for at, size in passes[1][0].items() if at not in aside)


class Largest(TorchDispatchMode):
    """The largest tensor that anything makes, in bytes."""

    found = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else (out,)
        sizes = [t.untyped_storage().size() for t in made if isinstance(t, Tensor)]
        self.found = max([self.found, *sizes])
        return out


def shifted(module: Module, by: float = 0.3, *, vectors: bool = False) -> Module:
    """The module with normal numbers times ``by`` added to its parameters, from torch's generator.

    What starts at zero or one comes to matter. ``vectors``: of parameters of one dimension alone.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() < 2 or not vectors:
                parameter += by * torch.randn_like(parameter)
    return module
