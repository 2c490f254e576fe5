"""Cases and limits of ETC for the laws."""

from __future__ import annotations

from everyformer.core.trials import LONGEST, Make, Pair, Trials, output


def _limits(make: Make) -> list[Pair]:
    """Without labels, and with a radius of the whole text, it is attention."""
    plain = make("attention")
    wide = make("etc", radius=LONGEST)
    own = plain.state_dict()
    rows = own.pop("project.weights.0").chunk(3)
    names = ("long.query.weight", "long.key.any.weight", "long.value.any.weight")
    wide.load_state_dict({**own, **dict(zip(names, rows, strict=True))}, strict=False)
    for labels in (wide.long_labels, wide.summary_labels):
        labels.vectors.data.zero_()
        labels.numbers.data.zero_()
    return [("without labels it is attention", output(wide), output(plain))]


TRIALS = Trials(
    variants=(
        {},
        {"radius": 3, "clip": 2, "sharing": "sides"},
        {"radius": 2, "clip": 5, "sharing": "none", "bias": ("query", "key", "value", "output")},
        {"radius": 0, "direction": False, "share_output": True},
        {"radius": 4, "ordered": False, "hard_g2l": False, "hard_l2g": True},
    ),
    limits=_limits,
    small={
        "mlm": {"radius": 3, "summaries": {"every": 4, "cpc": 0.25, "cpc_share": 0.5}},
        "classify-text": {"radius": 3, "summaries": {"every": 4}},
    },
)
