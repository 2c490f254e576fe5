"""An imported model filled with its weights, and its outputs held against those of its origin."""

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.errors import UnsupportedError
from everyformer.core.wording import join_names
from everyformer.genes.config import ModelConfig
from everyformer.lab.convert.folder import widest
from everyformer.lab.convert.rules import Report
from everyformer.models.base import Model
from sequence_laws.extras import extra_module

LARGEST = 200_000_000
"""parameters of a model that is compared, at most: both are held in float64 for it"""
OURS = {"decoder_input_ids": "prefix", "returns_to_go": "returns"}
OURS |= dict.fromkeys(("input_ids", "pixel_values", "states"), "inputs")
"""inputs by the names of transformers, and ours"""


def build_theirs(
    name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: torch.dtype
) -> nn.Module:
    """The class ``name`` of transformers with the weights that were read, rounded to a dtype."""
    config = {k: v for k, v in config.items() if k not in ("quantization_config", "dtype")}
    with quiet():
        cls = getattr(extra_module("transformers", "hf", "comparing"), name)
        built: nn.Module = cls.from_pretrained(
            None, config=cls.config_class.from_dict(config), state_dict=_cast(tensors, kind),
            dtype=torch.float64,
        )  # fmt: skip
    return built


@contextmanager
def quiet() -> Iterator[None]:
    """Other libraries say nothing of their own work while the block runs."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def fill(
    model: Model, tensors: Mapping[str, Tensor], kind: torch.dtype | None, report: Report
) -> None:
    """Fill a model with tensors, all in ``kind`` (default: what holds all of them), to evaluate."""
    kind = kind or widest(tensors)
    there = sorted({str(value.dtype) for value in tensors.values()})
    if there not in ([], [str(kind)]):
        report.notes.append(f"weights are {kind}, of {join_names(there)}".replace("torch.", ""))
    model.to(kind).eval()
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            if name in tensors:
                value.copy_(tensors[name])


def compare(
    model: Model, name: str, build: Callable[[torch.dtype], nn.Module], report: Report
) -> None:
    """Hold a model's outputs for random inputs against those of its origin, both in float64.

    They may differ by twice what float32 changes in both, since transformers computes parts in it.
    The report says the difference, or why there was no comparison.

    Args:
        name: what the origin is called.
        build: a copy of it, its weights rounded to a dtype.

    Raises:
        UnsupportedError: they differ by more.
    """
    count, kind = sum(w.numel() for w in model.parameters()), next(model.parameters()).dtype
    inputs = _inputs(model.config)
    ours = {OURS.get(k, k): v[..., 0] if k == "returns_to_go" else v for k, v in inputs.items()}
    kinds = (torch.float64, torch.float32)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            if count > LARGEST:
                raise UnsupportedError(f"{count:,} parameters are more than {LARGEST:,}")
            module = build(kind).eval()
            with quiet():
                exact, low = (_outputs(module.to(kind), _cast(inputs, kind)) for kind in kinds)
        except Exception as error:  # theirs, of whatever kind
            report.notes.append(f"not compared with {name}: {error}".splitlines()[0])
            return
        twin = copy.deepcopy(model)
        got, near = (twin.to(kind)(**_cast(ours, kind)).logits for kind in kinds)
    reach, off = float(exact.abs().max()), float((got - exact).abs().max())
    rounding = float((exact - low).abs().max() + (got - near).abs().max())
    if off > 2 * rounding + torch.finfo(torch.float32).eps * reach:
        raise UnsupportedError(
            f"the imported model's outputs are off by {off:.2g} from those of {name}, which reach "
            f"{reach:.2g}: something of this checkpoint has no counterpart here; please report it"
        )
    report.difference = off
    report.notes.append(f"compared with {name}: off by {off:.2g}, outputs reach {reach:.2g}")


def _outputs(module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Outputs of a module of transformers, or of timm."""
    out: Any = module(**inputs) if hasattr(module, "config") else module(*inputs.values())
    outputs: Tensor = out if isinstance(out, Tensor) else out.get("logits", out.get("action_preds"))
    return outputs


def _inputs(config: ModelConfig) -> dict[str, Tensor]:
    """Random inputs by the names of transformers."""
    draw = torch.Generator().manual_seed(0)
    numbers = partial(torch.randn, generator=draw, dtype=torch.float64)
    if config.task == "decision":
        shape = config.episodes
        sizes = {"states": shape.state, "actions": (shape.actions,), "returns_to_go": (1,)}
        given = {name: numbers(1, 4, *size) for name, size in sizes.items()}
        return {**given, "timesteps": torch.arange(4)[None]}
    if config.image is not None:
        return {"pixel_values": numbers(2, *config.image)}
    names = ("input_ids", "decoder_input_ids")[: 1 + (config.task == "seq2seq")]
    # RoBERTa counts no position for its padding, token 1
    first, size = min(2, config.vocabulary - 1), (2, min(64, config.tokens))
    return {n: torch.randint(first, config.vocabulary, size, generator=draw) for n in names}


def _cast(tensors: Mapping[str, Tensor], kind: torch.dtype) -> dict[str, Tensor]:
    return {n: v.to(kind) if v.is_floating_point() else v for n, v in tensors.items()}
