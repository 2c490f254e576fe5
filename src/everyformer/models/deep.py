"""Weights at the start of very deep networks, after the Sparse Transformer.

    W ~ N(0, 0.125 / n)           linear layers of n inputs
    W ~ N(0, 0.125 / (2 N n))     those that add to the residual stream of N layers
    E ~ N(0, 0.01^2)              tables of tokens; of positions 0.01^2 / (number of their tables)
    W = 0                         the output layer, so that the first loss is ln V; biases are 0 too

Source: Child et al. 2019, arXiv 1904.10509, section 5.2, whose "0.125 / sqrt(d)" is a variance
factor in the released code (openai/distribution_augmentation).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from everyformer.blocks.block import Block
from everyformer.blocks.stack import Stack
from everyformer.core.errors import UnsupportedError
from everyformer.core.position import Position
from everyformer.engines.projections import HeadProjections

SCALE, TABLE = 0.125, 0.01
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.Embedding, HeadProjections)
OUTPUTS = ("head", "ahead")
"""names of output layers"""


def linear_parts(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Weights that an initialisation of a whole model draws again, and biases that it sets to 0.

    All else starts as its own part says, whatever the model's init: gains, gates, slopes, scales.

    Returns:
        Matrices of linear layers, of tables and of positions that are added to vectors; and biases.
    """
    drawn: set[int] = set()
    matrices: list[Tensor] = []
    biases: list[Tensor] = []
    for part in model.modules():
        added = isinstance(part, Position) and part.acts_on in ("embeddings", "layers")
        if isinstance(part, LINEAR) or added:
            drawn |= {id(parameter) for parameter in part.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) in drawn and parameter.dim() >= 2:
            matrices.append(parameter)
        elif id(parameter) in drawn and (name.endswith("bias") or ".biases." in name):
            biases.append(parameter)
    return matrices, biases


def deep_weights(model: nn.Module, embeddings: Sequence[nn.Module]) -> None:
    """All matrices of a model; ``embeddings`` are its tables. A classifier's head keeps its own."""
    tables = {id(table.weight) for table in embeddings}
    pool = getattr(model, "pool", None)
    classifier = set() if pool is None else {id(parameter) for parameter in pool.parameters()}
    matrices, biases = ([p for p in ps if id(p) not in classifier] for ps in linear_parts(model))
    for weight in matrices:
        std = TABLE if id(weight) in tables else math.sqrt(SCALE / weight[0].numel())
        nn.init.normal_(weight, std=std)
    for bias in biases:
        nn.init.zeros_(bias)
    for group in _position_tables(model):
        for table in group:
            nn.init.normal_(table, std=TABLE / math.sqrt(len(group)))
    for part in model.modules():
        if isinstance(part, Stack):
            for linear in residual_outputs(part, "sparse-transformer"):
                inputs = 2 * len(part.order) * linear.in_features
                nn.init.normal_(linear.weight, std=math.sqrt(SCALE / inputs))
    for name in OUTPUTS:
        head = getattr(model, name, None)
        if isinstance(head, nn.Linear):
            nn.init.zeros_(head.weight)


def residual_outputs(stack: Stack, init: str) -> Iterator[nn.Linear]:
    """The linear layers whose outputs are added to the residual stream."""
    for block in stack.blocks:
        assert isinstance(block, Block)
        residual = block.mixer.outputs() + ([] if block.cross is None else block.cross.outputs())
        if block.feedforward is not None:
            residual.append(block.feedforward.down)
        for linear in residual:
            if not isinstance(linear, nn.Linear):
                raise UnsupportedError(
                    f"`init='{init}'` knows no output layer of {block.mixer.name}"
                )
            yield linear


def _position_tables(model: nn.Module) -> list[list[Tensor]]:
    """Tables of positions that are added up, group by group."""
    groups: list[list[Tensor]] = []
    for part in model.modules():
        of_pixels: Any = getattr(part, "position_tables", None)
        if of_pixels is not None:
            groups.append([table.weight for table in of_pixels()])
        elif isinstance(part, Position) and part.acts_on in ("embeddings", "layers"):
            tables: list[Tensor] = [weight for weight in part.parameters() if weight.dim() == 2]
            beside = getattr(part.options, "combine", "sum") == "concat"
            groups += [[table] for table in tables] if beside else [tables]
    return groups
