"""A Memorizing Transformer on documents whose definitions lie far back.

A document defines what each of 64 names means, one of 16 values, and goes on naming them: tokens
come in pairs, a name and its value, with filler between. A value can be known from the second time
on that a name comes, by whoever still sees the first.

Source: Wu et al. 2022, arXiv 2203.08913, sections 4.3 and 4.4: perplexity falls as the store grows,
and a model that was trained without one takes most of the gain after a short fine-tuning.
"""

import copy
import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.modules import memories_of
from everyformer.genes.memory.memorizing import MemorizingMemory
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_model

NAMES, VALUES, FILLERS = 64, 16, 8
LENGTH = 64
"""tokens of a segment, and of the window"""
SIZES = (0, 64, 256, 1024, 8192)
"""tokens in the store in evaluation"""
TRAINED = 2048
"""the same in fine-tuning"""
AGAIN, LATEST = 0.5, 30
"""how often a pair is one of so many last ones"""
SEGMENTS = {"training": 32, "evaluation": 128}
"""of a document"""
ROWS, TUNED = 32, 300
"""of a batch, and steps of fine-tuning"""
GUESSED = math.log(VALUES)
"""loss of who knows that a value comes, and nothing of which"""
SHARE = 0.5
"""of the loss that a model without a store has after the same fine-tuning, and of `GUESSED`"""


@experiment(
    "the loss of values that were defined before the window falls with every growth of the store, "
    f"from {' to '.join(map(str, SIZES))} tokens; a model trained without one, fine-tuned with one "
    f"for {TUNED} steps, has with the largest less than {SHARE:.0%} of the loss of one fine-tuned "
    f"without, and of guessing among {VALUES} values",
    members=("memorizing",),
    minutes=10,
)
def definitions(study: Study) -> Outcome:
    """Loss by size of the store, after fine-tuning with one and without."""
    for _ in study.seeds():
        plain = create_model(
            "memorizing", width=64, layers=2, heads=2, vocabulary=NAMES + VALUES + FILLERS,
            max_length=LENGTH, slots=LENGTH, size=TRAINED, neighbours=16, unit_scale=8.0,
            keep_position=True, gate=-1.0,
        )  # fmt: skip
        # a first segment alone has nothing in any store
        study.fit(plain, short_texts, 600)
        for name, size in study.arms((("without", 0), ("with", TRAINED))):
            model = copy.deepcopy(plain)
            set_size(model, size)
            stream = Documents(ROWS, SEGMENTS["training"], study.seed)
            study.fit(model, stream.read, TUNED, lr=2e-3, loss_of=stream.loss)
            for stored in SIZES if size else (0,):
                near, far = losses_of(model, stored, study)
                study.keep(f"{name}, {stored} stored: far", far)
                study.keep(f"{name}, {stored} stored: near", near)
        study.say(study.latest(".3f"))
    return outcome_of(study)


def outcome_of(study: Study) -> Outcome:
    """Verdict, sentence and figure of the numbers of all seeds."""
    losses = study.series("with, {} stored: far", SIZES)
    without = study.mean("without, 0 stored: far")
    worse = [f"{n:,}" for n, loss in zip(SIZES, losses, strict=True) if loss >= GUESSED]
    sentence = (
        f"Values defined before the window cost {' and '.join(f'{loss:.2f}' for loss in losses)} "
        f"nats with {' and '.join(f'{n:,}' for n in SIZES)} tokens in the store. Guessing costs "
        f"{GUESSED:.2f}: with {' and '.join(worse) or 'none'} stored, where {TRAINED:,} were in "
        "fine-tuning, the model is worse than that. The one that was fine-tuned without a store "
        f"loses {without:.2f} there, {'more' if without > GUESSED else 'less'} than by guessing. "
        f"Inside the window both know them: [with, {SIZES[-1]} stored: near|.2f] and "
        "[without, 0 stored: near|.2f] nats."
    )
    curves = {part: study.curves(f"with, {{}} stored: {part}", SIZES) for part in ("far", "near")}
    figure = Lines(
        curves, [f"{stored:,}" for stored in SIZES], ("tokens stored", "loss of values (nats)"),
        levels={"far, trained without": without, f"guessing, {GUESSED:.2f}": GUESSED},
    )  # fmt: skip
    falls = all(later < earlier for earlier, later in itertools.pairwise(losses))
    holds = falls and losses[-1] < SHARE * min(without, GUESSED)
    return study.outcome(holds, sentence, size=figure)


class Documents:
    """Streams of documents, a segment at a time, and the state that a model reads them with.

    Streams begin at different places of their first documents; ``filler`` is the share of pairs
    that mean nothing.
    """

    def __init__(self, rows: int, segments: int, seed: int, filler: float = 0.5) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.age = torch.arange(rows) * segments // rows
        self.segments, self.filler = segments, filler
        self.state: Any = None
        self.meanings = self._draw(VALUES, rows, NAMES)
        self.last_seen = torch.full((rows, NAMES), -1)
        self.recent = self._draw(NAMES, rows, LATEST)
        self.pairs = 0

    def _draw(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def read(self, _: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The next tokens (B, L), and with them, (2, B, L), the ones after and how far back the
        name of each value came last: 0 where it did not, or where there is no value."""
        begins = self.age % self.segments == 0
        if self.pairs and bool(begins.any()):
            fresh = self._draw(VALUES, len(self.age), NAMES)
            self.meanings = torch.where(begins[:, None], fresh, self.meanings)
            self.last_seen = self.last_seen.masked_fill(begins[:, None], -1)
            if self.state is not None:
                self.state = self.state.reset(begins)
        self.age = self.age + 1
        tokens, distances = [], []
        for _pair in range(LENGTH // 2):
            pair, distance = self._pair()
            tokens += pair
            distances += [torch.zeros_like(distance), distance]
        text, back = torch.stack(tokens, 1), torch.stack(distances, 1)
        # targets are one token later: the first of the next segment is a name, never scored
        targets = torch.cat((text[:, 1:], text[:, :1]), 1)
        back = torch.cat((back[:, 1:], torch.zeros_like(back[:, :1])), 1)
        return text, torch.stack((targets, back))

    def _pair(self) -> tuple[list[Tensor], Tensor]:
        """A name and its value, or two fillers; and how many tokens back the name came last."""
        rows = len(self.age)
        self.pairs += 1
        ago = torch.rand(rows, generator=self.generator).mul(torch.tensor(LATEST).log()).exp()
        old = self.recent.gather(1, ago.long()[:, None] - 1)
        again = torch.rand(rows, 1, generator=self.generator) < AGAIN
        name = torch.where(again, old, self._draw(NAMES, rows, 1))
        self.recent = torch.cat((name, self.recent[:, :-1]), 1)
        value, before = self.meanings.gather(1, name), self.last_seen.gather(1, name)
        filler = torch.rand(rows, 1, generator=self.generator) < self.filler
        fillers = self._draw(FILLERS, rows, 2) + NAMES + VALUES
        distance = torch.where((before >= 0) & ~filler, 2 * (self.pairs - before), 0)
        self.last_seen = torch.where(
            filler, self.last_seen, self.last_seen.scatter(1, name, self.pairs)
        )
        first = torch.where(filler, fillers[:, :1], name + VALUES)
        second = torch.where(filler, fillers[:, 1:], value)
        return [first[:, 0], second[:, 0]], distance[:, 0]

    def loss(self, model: Any, inputs: Tensor, goals: Tensor) -> Tensor:
        """Loss of values whose names came before; the model goes on from the last segment."""
        state = model.init_state(len(inputs)) if self.state is None else self.state
        targets = goals[0].masked_fill(goals[1] == 0, -100)
        out = model(inputs, targets=targets, state=state)
        self.state = out.state.detach()
        loss: Tensor = out.loss
        return loss


def short_texts(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Single segments without filler: values of names that came before are scored."""
    seed = int(torch.randint(1 << 40, (1,), generator=generator))
    text, [targets, back] = Documents(ROWS, 1, seed, filler=0.0).read()
    return text, targets.masked_fill(back == 0, -100)


def set_size(model: Model, size: int) -> None:
    """Let the layer with a store keep so many tokens."""
    for memory in memories_of(model):
        if isinstance(memory, MemorizingMemory):
            memory.size = size


@torch.no_grad()
def losses_of(model: Model, size: int, study: Study) -> tuple[float, float]:
    """Losses of values whose names came last inside the window, and before it, in the second half
    of long documents."""
    set_size(model, size)
    model.eval()
    segments = SEGMENTS["evaluation"]
    stream = Documents(8, 1 << 40, 1_000_000 + study.seed)
    sums, counts = [0.0, 0.0], [0, 0]
    state: Any = model.init_state(8)
    for segment in range(segments):
        inputs, [targets, back] = stream.read()
        out = model(inputs, state=state)
        state = out.state
        if segment < segments // 2:
            continue
        each = F.cross_entropy(out.logits.transpose(1, 2), targets, reduction="none")
        for n, part in enumerate(((back > 0) & (back < LENGTH), back >= LENGTH)):
            sums[n] += float(each[part].sum())
            counts[n] += int(part.sum())
    near, far = (total / max(count, 1) for total, count in zip(sums, counts, strict=True))
    return near, far
