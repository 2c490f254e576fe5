"""AdamW with decay where it belongs, and the running average of the weights.

The rule of weight decay: a parameter decays if it has two or more dimensions, its name does not
end in ``bias``, and it does not carry the attribute ``no_decay = True`` (tables over positions).
A parameter may also carry ``lr_scale``: what its learning rate is multiplied by (default 1), and
``apart = True``: it learns by a loss of its own and is clipped by its own norm.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import get_ema_multi_avg_fn

from everyformer.core.errors import PluginError, UnsupportedError
from everyformer.core.mixer import Mixer
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.shared import whole
from sequence_laws.foreign import source


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The trainable parameters grouped by whether they decay and by their ``lr_scale``."""
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = (
            parameter.dim() >= 2
            and not name.endswith("bias")
            and not getattr(parameter, "no_decay", False)
        )
        scale = float(getattr(parameter, "lr_scale", 1.0))
        key = (weight_decay if decays else 0.0, scale, getattr(parameter, "apart", False))
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale, _), parameters in groups.items()
    ]


def build_optimiser(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the groups of `parameter_groups`; fused where torch has it.

    Raises:
        UnsupportedError: there are none.
    """
    groups = parameter_groups(model, config.weight_decay)
    if not groups:
        raise UnsupportedError(
            "no parameter of this model asks for a gradient, so that nothing can be learnt: give "
            "it some, or let requires_grad of its own be True"
        )
    fused = all(
        parameter.device.type in ("cpu", "cuda") and parameter.is_floating_point()
        for group in groups
        for parameter in group["params"]
    )
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused or None
    )


def check_known(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Refuse weights that were made after the optimiser, as the model ran.

    Raises:
        PluginError: names the mixer, or what else made them.
    """
    known = {id(weight) for group in optimiser.param_groups for weight in group["params"]}
    learned = ((name, w) for name, w in model.named_parameters() if w.requires_grad)
    for name, weight in learned:
        if id(weight) not in known:
            parts = (part for part in model.modules() if isinstance(part, Mixer))
            owner = next((p for p in parts if any(w is weight for w in p.parameters())), model)
            raise PluginError(
                f"{type(owner).__name__} ({source(type(owner))}) made weights as it ran ({name}), "
                "which no optimiser knows: make them where it is built"
            )


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Give every group ``lr`` times its own scale."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["lr_scale"]


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> float:
    """Scale all gradients so that their common norm is at most ``limit``; the norm before it.

    Parameters ``apart`` have a norm of their own, with the same limit; it is not given back.
    """
    used = [parameter for parameter in parameters if parameter.grad is not None]
    norms = []
    for apart in (False, True):
        group = [parameter for parameter in used if getattr(parameter, "apart", False) is apart]
        norm = get_total_norm([parameter.grad for parameter in group if parameter.grad is not None])
        if limit is not None:
            clip_grads_with_norm_(group, limit, norm)
        norms.append(float(whole(norm)))
    return norms[0]


@torch.no_grad()
def copy_weights(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Give parameters of the model these values, by name."""
    weights = dict(model.named_parameters())
    for name, value in values.items():
        weights[name].copy_(value)


class WeightAverage:
    """Exponential moving average ``a <- decay a + (1 - decay) w``, started at the first weights.

    Floating parameters are averaged; everything else is read from the model itself, and so is what
    it names ``unaveraged``.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        apart = getattr(model, "unaveraged", ())
        self.values = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.is_floating_point() and name not in apart
        }
        self._average = get_ema_multi_avg_fn(decay)

    def update(self, model: nn.Module) -> None:
        """Take the model's weights into the average."""
        weights = dict(model.named_parameters())
        current = [weights[name].detach() for name in self.values]
        self._average(list(self.values.values()), current, 0)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model holds the averaged weights while the block runs."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        weights: dict[str, Tensor] = dict(model.named_parameters())
        for name, value in self.values.items():
            # values and not storages: of weights that are split those are torch's own
            held = weights[name].clone()
            weights[name].copy_(value)
            value.copy_(held)
