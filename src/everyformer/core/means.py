"""Names of the means that evaluations report with losses (`everyformer.core.tally`)."""

from typing import NamedTuple


class Mean(NamedTuple):
    """Names of a mean."""

    name: str
    """in evaluations and results"""
    title: str
    """in a sentence or over a column"""
    brief: str
    """where there is little room"""


MEANS = {
    "depth": Mean("mean_depth", "steps of layers that a token takes", "steps a token"),
    "span": Mean("mean_span", "tokens that a head looks back, ramp included", "span of a head"),
}
"""means over tokens, or over the heads that read them"""
