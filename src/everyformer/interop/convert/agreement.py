"""An imported model filled with its weights, and its outputs held against those of its origin."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.errors import MissingExtraError, UnsupportedError
from everyformer.core.wording import listed
from everyformer.genes.config import ModelConfig
from everyformer.interop.convert.folder import widest
from everyformer.interop.convert.rules import Report
from everyformer.models.base import Model
from everyformer.system.extras import extra_module

LARGEST = 200_000_000
"""parameters of a model that is compared, at most: both are held in float64 for it"""
LENGTH = 64
"""tokens of a text that both read, at most"""


class Origin(NamedTuple):
    """A model of another library, from which ours was imported."""

    name: str
    build: Callable[[torch.dtype], nn.Module]
    """the model, its weights rounded to a dtype; a copy, which may be changed"""
    read: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    """its outputs for inputs by the names that transformers gives them"""


def hub_origin(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Origin:
    """The class ``name`` of transformers with the weights that were read."""

    def build(kind: torch.dtype) -> nn.Module:
        cls = getattr(extra_module("transformers", "hf", "comparing"), name)
        said = {k: v for k, v in config.items() if k not in ("quantization_config", "dtype")}
        chosen = cls.config_class.from_dict(said)
        # rounded as ours are; tables that it computes are not
        weights = _cast(tensors, kind)
        with quiet():
            built = cls.from_pretrained(
                None, config=chosen, state_dict=weights, dtype=torch.float64
            )
        assert isinstance(built, nn.Module)
        return built

    def read(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        with quiet():
            out = module(**inputs)
        result = out.action_preds if "actions" in inputs else out.logits
        assert isinstance(result, Tensor)
        return result

    return Origin(f"transformers' {name}", build, read)


@contextmanager
def quiet() -> Iterator[None]:
    """Transformers, where it is loaded, says nothing of its own work while the block runs."""
    said = getattr(sys.modules.get("transformers"), "logging", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if said is None:
            yield
            return
        level, shown = said.get_verbosity(), said.is_progress_bar_enabled()
        said.set_verbosity_error()
        said.disable_progress_bar()
        try:
            yield
        finally:
            said.set_verbosity(level)
            if shown:
                said.enable_progress_bar()


def fill(
    model: Model, tensors: Mapping[str, Tensor], kind: torch.dtype | None, report: Report
) -> None:
    """Fill a model with tensors, all in ``kind`` (default: what holds all of them), to evaluate."""
    kinds = {value.dtype for value in tensors.values()}
    kind = kind or widest(tensors)
    if kinds - {kind}:
        names = listed(sorted(str(k).removeprefix("torch.") for k in kinds))
        report.notes.append(f"the checkpoint's {names} became {str(kind).removeprefix('torch.')}")
    model.to(kind).eval()
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            if name in tensors:
                value.copy_(tensors[name])


def compare(model: Model, origin: Origin, report: Report) -> None:
    """Hold a model's outputs for random inputs against its origin's, both in float64.

    They may differ by twice what float32 makes of the origin's own. The report says the
    difference, or why there was no comparison.

    Raises:
        UnsupportedError: they differ by more.
    """
    count = sum(weight.numel() for weight in model.parameters())
    kind = next(model.parameters()).dtype
    if count > LARGEST:
        report.notes.append(
            f"not compared with {origin.name}: {count:,} parameters are more than {LARGEST:,}"
        )
        return
    ours, theirs = _inputs(model.config)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            module = origin.build(kind).eval()
            exact = origin.read(module.double(), theirs)
            rounded = origin.read(module.float(), _cast(theirs, torch.float32))
        except MissingExtraError as error:
            report.notes.append(f"not compared with {origin.name}: {error}")
            return
        except Exception as error:  # theirs, of whatever kind
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            report.notes.append(f"not compared with {origin.name}, which says {reason}")
            return
        first, *rest = ours
        got = model.double()(ours[first], **{name: ours[name] for name in rest}).logits
    # exact, since every value was one of this dtype
    model.to(kind)
    reach, rounding = float(exact.abs().max()), float((exact - rounded).abs().max())
    off = float((got - exact).abs().max())
    if off > 2 * rounding + torch.finfo(torch.float32).eps * reach:
        raise UnsupportedError(
            f"the imported model's outputs are off by {off:.2g} from those of {origin.name}, which "
            f"reach {reach:.2g}: something of this checkpoint has no counterpart here; please "
            "report it"
        )
    report.difference = off
    report.notes.append(f"compared with {origin.name}: off by {off:.2g}, outputs reach {reach:.2g}")


def _inputs(config: ModelConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random inputs by our names, the first of them by place, and by those of transformers."""
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    if config.task == "decision":
        assert config.episodes is not None
        steps = 4
        shape = config.episodes
        given = {
            "states": numbers(1, steps, *shape.state),
            "returns": numbers(1, steps),
            "actions": numbers(1, steps, shape.actions).tanh(),
            "timesteps": torch.arange(steps)[None],
        }
        theirs = {name: value for name, value in given.items() if name != "returns"}
        return given, theirs | {"returns_to_go": given["returns"][..., None]}
    if config.image is not None:
        pixels = numbers(2, *config.image)
        return {"inputs": pixels}, {"pixel_values": pixels}
    # RoBERTa counts no position for its padding, token 1
    first, length = min(2, config.vocabulary - 1), min(LENGTH, config.tokens)
    tokens, prefix = torch.randint(first, config.vocabulary, (2, 2, length), generator=draw)
    if config.task == "seq2seq":
        return (
            {"inputs": tokens, "prefix": prefix},
            {"input_ids": tokens, "decoder_input_ids": prefix},
        )
    return {"inputs": tokens}, {"input_ids": tokens}


def _cast(inputs: Mapping[str, Tensor], kind: torch.dtype) -> dict[str, Tensor]:
    return {n: v.to(kind) if v.is_floating_point() else v for n, v in inputs.items()}
