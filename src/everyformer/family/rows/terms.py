"""Words and costs that rows share."""

from typing import Any

from everyformer.core.config import Choice
from everyformer.core.member import Cost, Genes
from everyformer.core.tasks import (
    IMAGE,
    IMAGE_NUMBER,
    SERIES,
    SERIES_NUMBER,
    TEXT,
    TEXT_NUMBER,
)  # fmt: skip
from everyformer.genes import GENES, plain_genes
from everyformer.genes.gene import plain_choice

TEXTS, IMAGES, SERIES_TASKS = (TEXT, TEXT_NUMBER), (IMAGE, IMAGE_NUMBER), (SERIES, SERIES_NUMBER)
"""what predicts one thing of a text, a picture, a series"""
SOFTMAX = Cost(2, 1, "O(L^2 d) time, O(L d) memory when fused", "2 t d")
NO_CROSS_DISTANCE = "distances are defined between tokens of one sequence"
KERNEL = ("O(L M d) time, O(L (M + d)) memory; M features a head", "M (d + h), constant")
BY_CHOICE = "what a step keeps and reads follows from a choice: another number after each text"
MOVING_CHUNKS = (
    "later tokens move the borders of the chunks, and so which earlier ones a token sees (their "
    "content never enters)"
)
NO_CROSS_AFT = "published with w over one sequence; a cross form would need a table of its own"
NO_PAST = "what is carried from segment to segment is the past of a text read in order"
NO_CROSS_SGU = "the spatial matrix mixes the tokens of one sequence"

BIASED = Choice("attention", {"bias": ("query", "key", "value", "output")})


def genes(**chosen: Any) -> Genes:
    """Genes by name, and fields of `Genes`; what is not given is plain attention's."""
    genes = {name: plain_choice(chosen.pop(name)) for name in GENES if name in chosen}
    return Genes(plain_genes() | genes, **chosen)


UNDROPPED: dict[str, Any] = {"feedforward_dropout": 0.0}
"""of a feed-forward whose output alone is dropped"""
