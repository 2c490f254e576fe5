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
    own, rounded = (evaluate(each, dataset, limit=few) for each in (model, quantised(model)))
    assert own is not None
    assert rounded is not None
    bits = [found["bits_per_byte"] for found in (own, rounded)]
    say(
        f"weights in 8 bits: {bits[1]:.4f} bits a byte on {own['scored']:,} held-out tokens, "
        f"{bits[1] - bits[0]:+.4f} compared with {bits[0]:.4f} in float32"
    )
