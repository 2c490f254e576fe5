"""Cost of weights in 8 bits: how much worse a run predicts its held-out text with them."""

from everyformer.cli.parsing import say
from everyformer.cli.trained import TrainedRun
from everyformer.generation.quantised import quantised
from everyformer.models.base import Model
from everyformer.training.evaluate import evaluate

TOKENS = 4096
"""that are read for it, at least"""


def say_cost(trained: TrainedRun, model: Model) -> None:
    """Say the bits a byte with weights in 8 bits, and with the ``model``'s own."""
    if trained.data is None:
        say(
            "what 8 bits cost is not measured, since this model does not say where its data is: "
            "generate from the run that trained it"
        )
        return
    dataset = trained.own_dataset("")
    few = -(-TOKENS // dataset.length)
    both = [evaluate(each, dataset, limit=few) or {} for each in (model, quantised(model))]
    own, rounded = (found["bits_per_byte"] for found in both)
    say(
        f"weights in 8 bits: {rounded:.4f} bits a byte on {both[0]['scored']:,} held-out tokens, "
        f"{rounded - own:+.4f} compared with {own:.4f} in float32"
    )
