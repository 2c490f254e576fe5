"""Worth of an evaluation, beside an answer that reads nothing."""

from typing import Any

import pytest

from everyformer.core.tasks import TASKS

LOW, HIGH = "not surely better than ", "better than "


def several(*numbers: tuple[float, list[float]]) -> dict[str, Any]:
    """An evaluation of numbers with these errors, where their means have errors of 2."""
    each = [
        {"number": n, "rmse": rmse, "rmse_interval": around, "mean_rmse": 2.0}
        for n, (rmse, around) in enumerate(numbers, 1)
    ]
    # by all of them together it is better, which decides nothing
    whole = {"scaled_rmse": 0.5, "scaled_rmse_interval": [0.4, 0.6], "mean_scaled_rmse": 1.25}
    return {**whole, "by_number": each, "sequences": 9}


SURE, UNSURE, WORSE = (1.0, [0.5, 1.5]), (1.0, [0.5, 2.5]), (3.0, [2.5, 3.5])


@pytest.mark.parametrize(
    ("task", "evaluation", "said"),
    [
        ("classify-text", {"accuracy": 0.33, "majority_accuracy": 0.952},
         f"{LOW}always giving the commonest class (accuracy 0.952)"),
        ("classify-text", {"accuracy": 0.97, "accuracy_interval": [0.94, 0.99],
                           "majority_accuracy": 0.952},
         f"{LOW}always giving the commonest class (accuracy 0.952)"),
        ("classify-text", {"accuracy": 0.97, "accuracy_interval": [0.96, 0.99],
                           "majority_accuracy": 0.952},
         f"{HIGH}always giving the commonest class (accuracy 0.952)"),
        ("regress-series", {"rmse": 2.0, "rmse_interval": [1.5, 2.5], "mean_rmse": 2.4},
         f"{LOW}always giving the mean (rmse 2.4)"),
        ("regress-series", {"rmse": 2.0, "rmse_interval": [1.5, 2.5], "mean_rmse": 2.6},
         f"{HIGH}always giving the mean (rmse 2.6)"),
        ("regress-series", several(SURE, SURE),
         f"{HIGH}always giving the mean for each of 2 numbers (scaled rmse 1.25)"),
        ("regress-series", several(SURE, UNSURE),
         f"{HIGH}always giving the mean for 1 of 2 numbers; not surely for number 2"),
        ("regress-text", several(WORSE, SURE, UNSURE, SURE),
         f"{HIGH}always giving the mean for 2 of 4 numbers; not surely for numbers 1 and 3"),
        ("regress-image", several(WORSE, UNSURE),
         f"{LOW}always giving the mean for any of 2 numbers"),
        ("regress-image",
         {"by_number": [{"number": n, "rmse": 1.0, "mean_rmse": 2.0} for n in (1, 2)],
          "scaled_rmse": 0.5, "mean_scaled_rmse": 1.0, "sequences": 1},
         f"{LOW}always giving the mean for any of 2 numbers"),
        ("lm", {"loss": 3.0, "counting_loss": 2.9},
         f"{LOW}counting tokens (loss 2.9)"),
        ("lm", {"loss": 3.0, "bits_per_byte": 4.0, "counting_loss": 2.9,
                "counting_bits_per_byte": 4.5},
         f"{HIGH}counting tokens (bits per byte 4.5)"),
        ("pixels", {"bits_per_dim": 3.0, "counting_bits_per_dim": 4.0},
         f"{HIGH}counting intensities (bits per dim 4)"),
        ("decision", {"action_loss": 3.0, "counting_action_loss": 2.5},
         f"{LOW}always giving the commonest action, or the mean (action loss 2.5)"),
        ("classify-text", {"accuracy": 0.5, "majority_accuracy": 0.6, "always": "5 stars"},
         f"{LOW}always answering '5 stars' (accuracy 0.6)"),
        ("classify-text", {"accuracy": 0.7, "majority_accuracy": 0.6, "always": "b",
                           "held_out_majority_accuracy": 0.6, "held_out_always": "b"},
         f"{HIGH}always answering 'b' (accuracy 0.6)"),
        ("classify-text", {"accuracy": 0.7, "majority_accuracy": 0.0, "always": "b",
                           "held_out_majority_accuracy": 0.9, "held_out_always": "a"},
         f"{LOW}always answering 'a', the commonest class of the held-out part, where training's "
         "'b' is right for 0.0% (accuracy 0.9)"),
        ("classify-text", {"accuracy": 0.95, "majority_accuracy": 0.1, "always": "b",
                           "held_out_majority_accuracy": 0.9, "held_out_always": "a"},
         f"{HIGH}always answering 'a', the commonest class of the held-out part, where training's "
         "'b' is right for 10.0% (accuracy 0.9)"),
        ("lm", {"loss": 3.0}, None),
    ],
)  # fmt: skip
def test_a_result_is_told_beside_an_answer_without_a_model(
    task: str, evaluation: dict[str, Any], said: str | None
) -> None:
    assert TASKS[task].against_baseline(evaluation) == said
    assert (TASKS[task].baseline(evaluation) is None) == (said is None)
