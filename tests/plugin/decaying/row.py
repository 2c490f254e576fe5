"""The row of the family table; read by `everyformer list`, so that it imports no torch."""

from everyformer.core.config import Choice
from everyformer.core.member import Cost, Genes, Member
from everyformer.genes import plain_genes

ROW = Member(
    "decay",
    "Exponentially decaying averages",
    "tests/plugin",
    2026,
    None,
    Genes(plain_genes() | {"mixer": Choice("decay")}),
    ("lm",),
    Cost(2, 2, "O(L^2 d) time, O(L^2 h) memory", "d, constant"),
    "a mean of the past is enough to count",
    bidirectional="the past decays, and only the past",
    cross="one sequence decays",
)
