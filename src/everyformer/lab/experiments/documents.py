"""Longer texts: documents read whole or cut, how windows should grow with depth, and tables of
positions made longer.

Sources: Beltagy et al. 2020, arXiv 2004.05150, section 6 (documents read whole beat
RoBERTa on their first 512 tokens), table 4 (bits a
character of text8 after 150,000 steps: windows that grow 1.21, of one size 1.23, that shrink 1.24)
and table 5 (bits a character of a RoBERTa on 4,096 tokens: fresh positions 10.3, repeated ones
1.96, trained on 1.71); Zaheer et al. 2020, arXiv 2007.14062, table 4.
"""

import math
from typing import Any

import torch
from torch import Tensor

from everyformer.genes.positions.learned import Learned
from everyformer.genes.positions.sinusoidal import Sinusoidal
from everyformer.lab.experiments.figures import Bars
from everyformer.lab.experiments.measures import held_out, load, model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.models.draft import by_layer
from everyformer.models.lengthen import lengthen

LONG, SHORT = 512, 64
"""tokens of a generated document, and those of one that is cut"""
NOISE, CLASSES, CUES = 4, 4, 4
"""symbols of a generated document: noise, and one a class, `CUES` times side by side"""
READERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "longformer": ("longformer", LONG, {"window": 32}),
    "bigbird": ("bigbird", LONG, {"block_size": 16, "random_blocks": 2}),
    "attention": ("attention", LONG, {}),
    "attention, cut": ("attention", SHORT, {}),
}
"""arm -> member, tokens that it reads, options"""
MARGIN = 0.3


@experiment(
    "documents of 512 tokens are classified at least 30% more often on all of them than on "
    "the first 64",
    members=("longformer", "bigbird"),
    minutes=10,
)
def documents(study: Study) -> Outcome:
    """Share of held-out generated documents whose class is predicted."""
    for _ in study.seeds():
        for name, (member, length, options) in study.arms(READERS.items()):
            study.keep(name, classified(study, member, length, options))
        study.say(f"right: {study.latest('.1%')}")
    sentence = (
        f"Of documents of {LONG} symbols, of which {CUES}, anywhere, tell the class of {CLASSES}, "
        "Longformer classifies [longformer|.1%], BigBird [bigbird|.1%] and attention "
        f"[attention|.1%]; on the first {SHORT} tokens attention [attention, cut|.1%]."
    )
    m = study.means()
    figure = Bars(study.numbers, "documents classified", top=1)
    holds = min(m["longformer"], m["bigbird"]) > m["attention, cut"] + MARGIN
    return study.outcome(holds, sentence, accuracy=figure)


def cued(generator: torch.Generator, rows: int = 16) -> tuple[Tensor, Tensor]:
    """Noise with cues at one place anywhere, and their class."""
    inputs = torch.randint(0, NOISE, (rows, LONG), generator=generator)
    classes = torch.randint(0, CLASSES, (rows,), generator=generator)
    positions = torch.randint(0, LONG - CUES, (rows, 1), generator=generator) + torch.arange(CUES)
    return inputs.scatter(1, positions, NOISE + classes[:, None].expand(-1, CUES)), classes


def classified(study: Study, member: str, length: int, options: dict[str, Any]) -> float:
    """Accuracy of a model of ``length`` tokens, which reads the class token, a global one."""
    model = create_model(
        member, "classify-text", width=32, layers=2, heads=2, vocabulary=NOISE + CLASSES,
        classes=CLASSES, max_length=length, pooling="class", **{"position": None, **options},
    )  # fmt: skip

    def cut(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, classes = cued(generator)
        return inputs[:, :length], classes

    study.fit(model, cut, 200)
    inputs, classes = study.fresh(cued, 5000, 256)
    parts = inputs[:, :length].split(32)
    with torch.no_grad():
        guesses = torch.cat([model(part).logits.argmax(-1) for part in parts])
    return float((guesses == classes).float().mean())


GROWING = (4, 8, 32, 128)
"""windows of the layers, first layer first; half of each lies before a token"""
EQUAL = sum(GROWING) // len(GROWING) // 2 * 2
WINDOWS = {"growing": GROWING, "of one size": (EQUAL,) * len(GROWING), "shrinking": GROWING[::-1]}
BETTER = 0.995
"""loss of growing windows over that of the others, at most"""


@experiment(
    "windows that grow from layer to layer need at least 0.5% fewer bits a byte than windows "
    "of one size and than windows that shrink, of as many keys together",
    members=("longformer",),
    minutes=12,
)
def windows(study: Study) -> Outcome:
    """Loss of language models that differ in the order of their windows alone."""
    data = load("lm", source=study.source or "stdlib", length=256)
    arms = {name: {"window": by_layer(*each)} for name, each in WINDOWS.items()}
    sizes: dict[str, Any] = {"width": 64, "layers": len(GROWING), "heads": 4, "position": "rope"}
    study.measure(
        arms, (data, 8), 500,
        lambda model: held_out(model, data, "loss", limit=256) / math.log(2),
        "{:.3f} bits a byte", member="longformer", **sizes,
    )  # fmt: skip
    sentence = (
        f"Language models of bytes of {data.name} with windows of {', '.join(map(str, GROWING))} "
        f"from the first layer to the last need [growing|.3f] bits a byte, with {EQUAL} in all "
        "layers [of one size|.3f], in reverse order [shrinking|.3f]."
    )
    every = study.numbers.values()
    figure = Bars(study.numbers, "bits a byte", near=True)
    holds = all(one <= BETTER * min(others) for one, *others in zip(*every, strict=True))
    return study.outcome(holds, sentence, order=figure)


BEFORE, AFTER = 64, 256
"""bytes of a text before and after the extension, and the first also the window, as in the paper:
hardly a window holds two tokens with the same row of a repeated table"""
RATE = 0.3
"""of the bytes are hidden: twice as many as in the paper, for more targets a step"""
WAVES = 0.05
"""of sinusoids, at which the short table starts: from small random rows the few steps of this
experiment would not teach the model to read positions at all"""
NEAR, FAR = 1.1, 1.25
"""loss right after the extension over that of the short model: of repeated rows at most, of fresh
ones at least"""


@experiment(
    "right after a table of positions is made longer repeated rows lose at most 10% more than "
    "the short model and fresh ones at least 25% more, and after 100 steps more fresh ones "
    "still lose more",
    members=("longformer",),
    minutes=10,
)
def extension(study: Study) -> Outcome:
    """A masked model of short texts made longer: its table repeated, or with fresh rows."""
    source = study.source or "stdlib"
    short, long = (
        load("mlm", source=source, length=length, mask_rate=RATE) for length in (BEFORE, AFTER)
    )
    study.order(("short", "repeated", "fresh"))
    sizes = {"width": 96, "layers": 3, "heads": 4, "dropout": 0.0, "embedding_dropout": 0.0}
    for _ in study.seeds():
        model = model_for(short, "bert", **sizes)
        table_of(model)[:] = WAVES * Sinusoidal(width=96).embed(torch.arange(BEFORE)[None])[0]
        study.fit(model, (short, 32), 1000, lr=2e-3)
        study.keep("short", held_out(model, short, "loss", limit=512))
        for name in ("repeated", "fresh"):
            longer = lengthen(model, "longformer", AFTER, window=BEFORE)
            if name == "fresh":
                # as large as the learned ones are
                table = table_of(longer)
                table[BEFORE:] = table[:BEFORE].std() * torch.randn_like(table[BEFORE:])
            study.keep(name, held_out(longer, long, "loss", limit=128))
            study.fit(longer, (long, 8), 100, lr=5e-4)
            study.keep(f"{name}, trained on", held_out(longer, long, "loss", limit=128))
        study.say(f"nats a hidden byte: {study.latest('.3f')}")
    sentence = (
        f"A masked model of {BEFORE} bytes loses [short|.3f] nats a hidden byte. Made a Longformer "
        f"of {AFTER} bytes it loses [repeated|.3f] right away if its table is repeated and "
        f"[fresh|.3f] with fresh rows; after {study.steps(100)} more steps "
        "[repeated, trained on|.3f] and [fresh, trained on|.3f]."
    )
    holds = all(
        repeated <= NEAR * before and fresh >= FAR * before and repeated_after < fresh_after
        for before, repeated, fresh, repeated_after, fresh_after
        in zip(*study.numbers.values(), strict=True)
    )  # fmt: skip
    figure = Bars(study.numbers, "nats a hidden byte")
    return study.outcome(holds, sentence, loss=figure)


def table_of(model: Model) -> Tensor:
    """The learned rows of a model's positions, to change."""
    assert isinstance(model.position, Learned)
    return model.position.table.data
