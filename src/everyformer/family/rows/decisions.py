"""The Decision Transformer, and baselines."""

from typing import Any

from everyformer.core.config import Choice
from everyformer.core.member import Cost, Member
from everyformer.core.tasks import (
    DECISION,
)  # fmt: skip
from everyformer.family.rows.terms import (
    BIASED,
    SOFTMAX,
    UNDROPPED,
    genes,
)

_ACTING: dict[str, Any] = {
    "position": None,
    "mixer": Choice("attention", {**BIASED.options, "attention_dropout": 0.1}),
    "feedforward": Choice("relu", UNDROPPED),
    "block": {"dropout": 0.1},
    "model": {"layers": 3, "heads": 1, "init": "gpt2", "embedding_dropout": 0.1},
}
_FROM_THE_PAST = "what is done follows from the past alone"
_ONE_EPISODE = "it reads one episode"
_WINDOW = "it reads its last states again at every step"

ROWS: tuple[Member, ...] = (
    Member(
        "decision-transformer", "Decision Transformer", "Chen et al.", 2021, "2106.01345",
        genes(**_ACTING), (DECISION,), SOFTMAX,
        "conditioned on a high return it joins pieces of poor walks into shorter paths than the "
        "data hold, which a copy of those walks does not",
        bidirectional=_FROM_THE_PAST,
        cross=_ONE_EPISODE,
        group="reinforcement learning",
    ),
)  # fmt: skip

_CLONING = {**_ACTING, "model": {**_ACTING["model"], "decision": {"body": "mlp"}}}
_NETWORK = Cost(1, 1, "O(L K n d) time, K states of n numbers side by side", "K n")
BASELINES: tuple[Member, ...] = (
    Member(
        "bc", "Behaviour cloning (baseline)", "as in Chen et al.", 2021, "2106.01345",
        genes(**_CLONING), (DECISION,), _NETWORK,
        "a plain network that does what the data did in the last states",
        bidirectional=_FROM_THE_PAST, cross=_ONE_EPISODE, streaming=_WINDOW,
        group="reinforcement learning",
    ),
    Member(
        "percent-bc", "Behaviour cloning of the best tenth (baseline)", "as in Chen et al.", 2021,
        "2106.01345", genes(**_CLONING, data={"best": 0.1}), (DECISION,), _NETWORK,
        "the same of the episodes with the highest returns, up to a tenth of all steps",
        bidirectional=_FROM_THE_PAST, cross=_ONE_EPISODE, streaming=_WINDOW,
        group="reinforcement learning",
    ),
    Member(
        "no-return", "Decision Transformer without returns (baseline)", "as in Chen et al.", 2021,
        "2106.01345",
        genes(**{**_ACTING, "model": {**_ACTING["model"], "decision": {"return_to_go": False}}}),
        (DECISION,), SOFTMAX,
        "the same layers, not conditioned on a return: no target can matter",
        bidirectional=_FROM_THE_PAST, cross=_ONE_EPISODE,
        group="reinforcement learning",
    ),
)  # fmt: skip
