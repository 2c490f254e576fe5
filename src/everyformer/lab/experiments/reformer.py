"""Reformer: what rounds of hashing reach, and what reversible layers save."""

import itertools
from typing import cast

import torch
from torch import Tensor, nn

from everyformer.blocks.block import Block
from everyformer.blocks.passing import AllTokens
from everyformer.core.config import Choice
from everyformer.engines.content.chunk_lists import ChunkPattern
from everyformer.engines.content.hashing import bucket_order, columns, lsh_buckets, seeded_rotations
from everyformer.functional import lsh_attention
from everyformer.genes.mixers.reformer.function import dense_attention, lsh_weights_reference
from everyformer.genes.residuals.reversible import Replayed
from everyformer.lab.experiments.figures import Lines, Matrices
from everyformer.lab.experiments.measures import scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import build_model, create_model

ROUNDS = (1, 2, 4, 8, 16)
LENGTH, SIZE, CHUNK, BUCKETS = 512, 32, 16, 32
"""of the attention that is compared with dense"""
TRAINED, EVALUATED = 4, (1, 2, 4, 8)
"""rounds of the model that copies"""
HALF, SYMBOLS = 32, 32
"""tokens of a word and the zero before it; kinds of tokens"""
DEPTHS = (2, 4, 8, 16)
RESIDUALS = ("pre", "reversible")


@experiment(
    "from 1 to 8 rounds the error against dense attention falls below half, and below half of "
    "what random buckets leave; a model trained on copying with 4 rounds copies more with "
    "every doubling from 1 to 8, under 97% at first and over 97% at last",
    members=("reformer",),
    minutes=3,
)
def rounds(study: Study) -> Outcome:
    """Error of one attention against dense as rounds grow, and copies by a trained model."""
    kinds = ("hashed", "random")
    for seed in study.seeds():
        for kind, count in itertools.product(kinds, ROUNDS):
            study.keep(f"error, {kind} buckets, {count} rounds", output_error(kind, count, seed))
        torch.manual_seed(seed)
        model = create_model(
            "reformer", width=64, layers=1, heads=4, vocabulary=SYMBOLS, max_length=2 * HALF,
            position="learned", std=1.0, chunk=8, rounds=TRAINED, buckets=8,
        )  # fmt: skip
        study.fit(model, copy_batch, 300)
        copies = {count: copied(model, count, seed) for count in EVALUATED}
        for count, share in copies.items():
            study.keep(f"copied by {count} rounds", share)
        study.say("copied " + ", ".join(f"{share:.1%} by {n}" for n, share in copies.items()))
    off = {
        f"{kind} buckets": study.series(f"error, {kind} buckets, {{}} rounds", ROUNDS)
        for kind in kinds
    }
    first, last = off["hashed buckets"][0], off["hashed buckets"][ROUNDS.index(8)]
    chance = off["random buckets"][ROUNDS.index(8)]
    shares = study.series("copied by {} rounds", EVALUATED)
    sentence = (
        f"Against dense attention over {LENGTH} tokens the outputs are off by {first:.0%} after "
        f"one round of hashing and {last:.0%} after 8 (random buckets: {chance:.0%}). A model "
        f"trained on copying with {TRAINED} rounds copies "
        f"{', '.join(f'{share:.1%}' for share in shares)} of the symbols with "
        f"{', '.join(map(str, EVALUATED))}."
    )
    rises = all(a <= b + 1e-3 for a, b in itertools.pairwise(shares))
    holds = last < 0.5 * min(first, chance) and rises and shares[0] < 0.97 < shares[-1]
    figure = [
        Lines(off, ROUNDS, ("rounds", "error against dense attention"), log="x"),
        Lines({"copied": shares}, EVALUATED, ("rounds in evaluation", "symbols copied"), log="x"),
    ]
    return study.outcome(holds, sentence, error=figure, sorted=Matrices(sorted_weights()))


def vectors(seed: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Queries about 16 directions, so sharp that a token's weight lies on few others; values."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(16, SIZE, generator=generator)
    kind = torch.randint(16, (length,), generator=generator)
    qk = centres[kind] + 0.5 * torch.randn(length, SIZE, generator=generator)
    v = torch.randn(1, 1, length, SIZE, generator=generator)
    return 2 * nn.functional.normalize(qk, dim=-1)[None, None] * SIZE**0.5, v


def output_error(kind: str, count: int, seed: int) -> float:
    """|o - o_dense| / |o_dense| with ``count`` rounds of hashed or of random buckets."""
    qk, v = vectors(seed)
    factors = (BUCKETS,)
    buckets = lsh_buckets(qk, seeded_rotations(seed, 1, count, SIZE, columns(factors)), factors)
    if kind == "random":
        generator = torch.Generator().manual_seed(seed)
        buckets = torch.randint(BUCKETS, buckets.shape, generator=generator)
    pattern = ChunkPattern(CHUNK, 1, 1, once=True)
    dense = dense_attention(qk, v, pattern)
    return float((lsh_attention(qk, v, buckets, pattern) - dense).norm() / dense.norm())


def copy_batch(generator: torch.Generator, rows: int = 32) -> tuple[Tensor, Tensor]:
    """0 w 0 w: the second word is to be predicted."""
    word = torch.randint(1, SYMBOLS, (rows, HALF - 1), generator=generator)
    half = nn.functional.pad(word, (1, 0))
    text = torch.cat((half, half), 1)
    targets = text[:, 1:].clone()
    targets[:, : HALF - 1] = -100
    return text[:, :-1], targets


def copied(model: Model, count: int, seed: int) -> float:
    """Share of symbols copied by ``count`` rounds of hashing."""
    mixer = model.config.genes["mixer"]
    chosen = Choice(mixer.name, {**mixer.options, "evaluation_rounds": count})
    same = build_model(model.config.with_genes(mixer=chosen)).eval()
    same.load_state_dict(model.state_dict())
    return scored_accuracy(same, *copy_batch(torch.Generator().manual_seed(10**6 + seed), 512))


def sorted_weights(length: int = 64) -> dict[str, Tensor]:
    """Roots of the weights of dense attention in the order of text and buckets, and of a round."""
    qk, _ = vectors(0, length)
    buckets = lsh_buckets(qk, seeded_rotations(0, 1, 1, SIZE, 4), (8,))
    order = bucket_order(buckets)[0, 0, 0]
    whole = lsh_weights_reference(qk, buckets, ChunkPattern(length, 0, 0))[0, 0].sqrt()
    chunked = lsh_weights_reference(qk, buckets, ChunkPattern(8, 1, 1))[0, 0].sqrt()
    return {
        "dense, order of the text": whole,
        "dense, order of buckets": whole[order][:, order],
        "one round, chunks of 8": chunked[order][:, order],
    }


@experiment(
    "from 2 to 16 layers what is kept for the backward pass grows less than 1.5-fold, and more "
    "than 5-fold with plain residuals",
    members=("reformer",),
    minutes=0.1,
)
def reversible(study: Study) -> Outcome:
    """Bytes kept for the backward pass of 2 to 16 layers, with their weights left out."""
    for residual, depth in study.each(list(itertools.product(RESIDUALS, DEPTHS))):
        size = bytes_for_backward(residual, depth, study.seed) / 1e6
        study.keep(f"MB kept, {residual}, {depth} layers", size)
    sizes = {w: study.series(f"MB kept, {w}, {{}} layers", DEPTHS) for w in RESIDUALS}
    growth = {w: values[-1] / values[0] for w, values in sizes.items()}
    ratio = sizes["pre"][-1] / sizes["reversible"][-1]
    sentence = (
        f"From {DEPTHS[0]} to {DEPTHS[-1]} layers of hashed attention (width 128, 1,024 tokens) "
        f"what is kept for the backward pass grows {growth['pre']:.1f}-fold with plain residuals "
        f"and {growth['reversible']:.2f}-fold when reversible, buckets and random states "
        f"included; at {DEPTHS[-1]} layers it is {ratio:.0f} times less."
    )
    figure = Lines(sizes, DEPTHS, ("layers", "MB kept for the backward pass"), log="y")
    holds = growth["reversible"] < 1.5 < 5 < growth["pre"]
    return study.outcome(holds, sentence, memory=figure)


def bytes_for_backward(residual: str, depth: int, seed: int) -> float:
    """Bytes of the tensors that autograd or the reversible stack keeps, weights aside."""
    torch.manual_seed(seed)
    model = create_model(
        "reformer", width=128, layers=depth, heads=4, max_length=1024, residual=residual, rounds=2
    )
    x = torch.randn(1, 1024, 128, requires_grad=True)
    weights = {w.untyped_storage().data_ptr() for w in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t

    stored: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        if residual == "reversible":
            stack = model.stack
            blocks = [cast(Block, block) for block in stack.blocks]
            run = Replayed(blocks, stack.residual, stack.steps)
            run.forward(x, AllTokens(run))
            stored = [t for one in run.records for t in (*one.random, *one.choices)]
        else:
            model.stack(x)
    for t in stored:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return float(sum(sizes.values()))
