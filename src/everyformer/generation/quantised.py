"""Weights in 8 bits, for writing: of what a token reads from memory, a quarter is left.

    W = diag(s) Q,   s_i = max_j |W_ij| / 127,   Q_ij = round(W_ij / s_i), int8

Only matrices of linear layers, of the heads' projections and of the output are rounded; what is
multiplied with them, sums, norms and embeddings stay in float32. A compiled step
(`everyformer.generation.programs`) reads Q as it is; elsewhere W is made anew for each call.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from everyformer.core.errors import UnsupportedError
from everyformer.engines.projections import HeadProjections
from everyformer.models.base import Model

SMALL = 2**14
"""numbers below which a matrix stays as it is"""
LEAST = 2**20
"""numbers in such matrices of a model, at least: fewer are near a core already, and 4 layers of
width 128 (0.8 million) took 1.07 times as long, 4 of 192 (1.8 million) 0.79 to 0.95 times"""


class Scaled(nn.Module):
    """A matrix (n, k) from scales (n, 1) and rows (n, k) in int8."""

    def forward(self, scales: Tensor, rows: Tensor) -> Tensor:
        return scales * rows

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and rows of a matrix; the scales come first, since layers ask for the dtype of
        their first parameter."""
        # of a row of zeros 0, whatever is in rows then
        scales = weight.abs().amax(1, keepdim=True) / 127
        return scales, (weight / scales).round().to(torch.int8)


def quantised(model: Model) -> Model:
    """A copy of a model with its matrices in 8 bits, which shares nothing with it: the model may be
    trained on, or take other weights, and the copy stays as it is.

    Raises:
        UnsupportedError: the model reads a datastore, is not in float32 on a CPU, or is so small
            that it would write no faster.
    """
    first = next(model.parameters())
    alone = isinstance(model, Model)
    if not alone or first.dtype != torch.float32 or first.device.type != "cpu":
        given = f"{str(first.dtype).removeprefix('torch.')} on {first.device.type}"
        raise UnsupportedError(
            "weights in 8 bits are for a model in float32 on a CPU, not for one "
            f"{f'in {given}' if alone else 'that reads a datastore'}: leave out weights"
        )
    with torch.inference_mode(False), torch.no_grad():
        model = copy.deepcopy(model).requires_grad_(False)
        numbers = 0
        for part in [*model.modules()]:
            if isinstance(part, HeadProjections):
                part = part.weights
            elif not isinstance(part, nn.Linear):
                continue
            for name, weight in [*part.named_parameters(recurse=False)]:
                if weight.dim() == 2 and weight.numel() >= SMALL:
                    register_parametrization(part, name, Scaled(), unsafe=True)
                    numbers += weight.numel()
    if numbers < LEAST:
        raise UnsupportedError(
            f"weights in 8 bits would not be faster: this model has {numbers:,} numbers in large "
            f"matrices, and {LEAST:,} are needed: leave out weights"
        )
    return model


def made_anew(model: Model) -> int:
    """Bytes of the matrices that a call of such a copy makes of those in 8 bits, as no compiled
    step does."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(4 * tensor.numel() for tensor in tensors if tensor.dtype == torch.int8)
