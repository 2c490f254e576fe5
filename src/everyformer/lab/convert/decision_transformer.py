"""Decision Transformer of `transformers`: GPT-2's layers under its embeddings of episodes.

Theirs keeps GPT-2's table of positions and reads row 0 of it at every token, behind the norm of the
embeddings: here that row is part of the norm's bias, and of what is written all rows are 0.

Theirs reads states that are normalised, returns-to-go that are scaled and actions from -1 to 1, and
has no word for by what. What is written says so under ``everyformer``, which transformers keeps and
does not look at; of a third-party checkpoint these numbers are 0, 1, 1 and the ends -1 and 1.
"""

from typing import Any

from everyformer.core.bounds import Count
from everyformer.core.config import to_dict
from everyformer.core.errors import UnsupportedError
from everyformer.genes.config import ModelConfig
from everyformer.lab.convert.architecture import HubArchitecture
from everyformer.lab.convert.gpt2 import NAMES, SCALES, layer_rules
from everyformer.lab.convert.rules import Rule, linked

OURS = "everyformer"
"""the entry of their config that holds what only we say"""
POSITIONS = 1024
"""rows of GPT-2's table"""
CALLED = {"width": "hidden_size"}
TABLE = {
    "returns": "embed_return",
    "state": "embed_state",
    "action": "embed_action",
    "time": "embed_timestep",
    "head": "predict_action.0",
    "next_state": "predict_state",
    "next_return": "predict_return",
}
LEFT_OUT = ("vocabulary", "max_length")
EPS = 1e-5
"""of the norm of embeddings, which their config does not say"""


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    width, count = config["hidden_size"], config["act_dim"]
    tanh = config.get("action_tanh", True)
    decision = {"tanh": tanh, "table": config["max_ep_len"], "state_weight": 0.0}
    ends = {"low": [-1.0], "high": [1.0]} if tanh else {}
    episodes = {"state": [config["state_dim"]], "actions": count, "discrete": False, **ends}
    known = {"decision": {**decision, "return_weight": 0.0}, "episodes": episodes}
    known |= {name: saved for name, saved in (config.get(OURS) or {}).items() if name in known}
    hidden = config.get("n_inner") or 4 * width
    return {"member": "decision-transformer", "expansion": hidden / width, **known}


def _describe(config: ModelConfig) -> dict[str, Any]:
    shape, chosen = config.episodes, config.decision
    fit = not shape.discrete and len(shape.state) == 1 and chosen.variant == "gym"
    if not fit or not chosen.return_to_go or chosen.body != "layers":
        raise UnsupportedError(
            "a Decision Transformer of transformers reads returns-to-go, states and actions that "
            "are all numbers, in the variant 'gym': this model does not"
        )
    tanh = bool(shape.low) if chosen.tanh is None else chosen.tanh
    return {
        "state_dim": shape.state[0],
        "act_dim": shape.actions,
        "max_ep_len": config.timesteps,
        "action_tanh": tanh,
        "n_positions": max(POSITIONS, config.tokens),
        "vocab_size": 1,
        OURS: {"decision": to_dict(chosen), "episodes": to_dict(shape)},
    }


def _rules(config: ModelConfig) -> list[Rule]:
    shape, chosen, width = config.episodes, config.decision, config.width
    rules = [
        *linked(TABLE),
        Rule(("norm.weight",), ("embed_ln.weight",)),
        Rule(("norm.bias",), ("embed_ln.bias", "encoder.wpe.weight"),
             folded=max(POSITIONS, config.tokens)),
        *layer_rules(config, "encoder"),
        Rule((), ("encoder.wte.weight",), absent=(1, width)),
    ]  # fmt: skip
    for theirs, weight, size in (
        ("predict_state", chosen.state_weight, shape.state[0]),
        ("predict_return", chosen.return_weight, 1),
    ):
        if weight is None:
            rules.append(Rule((), (f"{theirs}.weight",), absent=(size, width), skip=1))
            rules.append(Rule((), (f"{theirs}.bias",), absent=(size,), skip=1))
    return rules


DECISION_TRANSFORMER = HubArchitecture(
    model_type="decision_transformer",
    prefix="",
    classes={"decision": "DecisionTransformerModel"},
    names={ours: CALLED.get(ours, name) for ours, name in NAMES.items() if ours not in LEFT_OUT},
    options=_options,
    describe=_describe,
    rules=_rules,
    further={
        "n_inner": Count | None,
        "state_dim": Count,
        "act_dim": Count,
        "max_ep_len": Count,
        "action_tanh": bool | None,
        OURS: dict[str, Any] | None,
    },
    ignored=r"\.attn\.(bias|masked_bias)$|^encoder\.wte\.weight$",
    only={**SCALES, "layer_norm_epsilon": EPS},
)
