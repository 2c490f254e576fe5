"""Why tables of the same models on the same task differ: one thing changed at a time.

The task is MAD's memorization with 2,048 tokens: fewer are learned by all, and of more not every
key comes up among the 4,096 of the training rows. The setting is that of lin-attn-bench
(`everyformer.lab.suites.presets`), whose numbers of the same models are others than those of the
papers that introduced them.

Source: Poli et al. 2024, arXiv 2403.17844.
"""

from typing import Any

import torch

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.lab.experiments.figures import Bars
from everyformer.lab.experiments.measures import held_out
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.lab.suites.presets import PAPER
from everyformer.models.build import create_model

SETTING = PAPER["mad:memorization-2048"]
ROWS, BATCH, EPOCHS, RATE = 256, SETTING.training["batch"], 200, SETTING.rates[-1]
HEAD = {"widths": {"key_dim": 16, "value_dim": 16}}
FACTORS: dict[str, dict[str, Any]] = {
    "8 heads of 16, not 2 of 64": {"heads": 8},
    "2 heads of 16, not of 64": {"mixer_options": HEAD},
    "no positions": {"position": "none"},
    f"100 epochs, not {EPOCHS}": {"epochs": 100},
    f"a rate of 5e-4, not {RATE:g}": {"lr": 5e-4},
    f"512 rows, not {ROWS}": {"rows": 512},
}
CANNOT = ("linear, 2 heads of 16, not of 64",)
"""whose channels of a head are the width's"""


@experiment(
    "one detail of the recipe alone moves memorization by over 20 points",
    members=("rope", "linear"),
    minutes=120,
)
def factors(study: Study) -> Outcome:
    """Test accuracy as in the setting, and what each change adds to that of the same seed."""
    for member in study.each(("rope", "linear")):
        usual = trained(study, member)
        study.keep(member, usual, "{:.1%}")
        for factor, change in FACTORS.items():
            if (name := f"{member}, {factor}") not in CANNOT:
                study.keep(name, trained(study, member, **change) - usual, "{:+.1%}")
    effects = {name: mean for name, mean in study.means().items() if "," in name}
    largest = max(effects, key=lambda name: abs(effects[name]))
    sentence = (
        f"Memorization is [rope|.1%] with rope and [linear|.1%] with linear attention; the largest "
        f"effect of one change is {effects[largest]:+.1%} ({largest})."
    )
    figure = Bars({name: study.numbers[name] for name in effects}, "accuracy added")
    return study.outcome(abs(effects[largest]) > 0.2, sentence, effects=figure)


def trained(
    study: Study, member: str, *, rows: int = ROWS, epochs: int = EPOCHS, lr: float = RATE,
    **change: Any,
) -> float:  # fmt: skip
    """Test accuracy of a member of the setting after a change."""
    torch.manual_seed(study.seed)
    options = (*(x for x in SETTING.options if not x.startswith("rows=")), f"rows={rows}")
    data = load_dataset(DataConfig(source=SETTING.data, options=options), "lm")
    genes = {"feedforward": "swiglu", "feedforward_options": {"expansion": 2.75}}
    sizes = {"vocabulary": data.vocabulary, "max_length": data.length}
    model = create_model(member, "lm", **{**SETTING.model, **sizes, **genes, **change})
    epoch = -(-rows // BATCH)
    recipe = {**SETTING.training, "lr": lr, "evaluate_every": epoch, "device": "cpu"}
    del recipe["steps"]
    assert data.tested is not None
    return held_out(study.train(model, data, epochs * epoch, **recipe), data.tested, "accuracy")
