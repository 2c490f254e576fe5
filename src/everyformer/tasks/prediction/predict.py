"""`predict`, the one call from Python."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from everyformer.data.config import Header, Separator
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.models.base import Model
from everyformer.tasks.prediction.inputs import Reading, array_inputs
from everyformer.tasks.prediction.predictor import Predictor
from everyformer.tasks.prediction.records import Prediction


def predict(
    run: str | Path | Model,
    inputs: str | Path | Sequence[str | Path] | np.ndarray | Tensor,
    *,
    top: int | None = None,
    batch: int = 16,
    device: str = "auto",
    tokenizer: Tokenizer | None = None,
    classes: Sequence[str] = (),
    text: bool = False,
    whole: bool = False,
    text_column: str | None = None,
    header: Header = "auto",
    separator: Separator = "auto",
    encoding: str | None = None,
) -> list[Prediction]:
    """Predictions of a trained model for each row of ``inputs``, in their order.

        ef.predict("runs/attention", ["a warm film", "a dull one"])[0].label
        ef.predict("runs/attention", Path("reviews.csv"), top=3)
        ef.predict(model, images)  # (N, C, H, W) uint8

    Args:
        run: a run's directory, which answers with its datastore where it made one (knn-lm, spalm),
            a saved model's folder, or a model.
        inputs: sentences, or files and folders as on the command line (a name that is there, has a
            known ending or a slash, or any `Path`): texts one a line, tables, pictures, arrays; or
            an array of pictures, series (N, T, n) or tokens (N, L).
        top: how many classes (default: 1) or tokens (default: 5) come with their probabilities.
        batch: rows a forward pass; it changes nothing but speed and memory.
        device: where a run or a saved model is computed; auto: an accelerator if there is one. A
            model stays where it is.
        tokenizer: what makes the tokens of a model that is given as such, or saved without.
        classes: names of its classes, likewise; without them they are numbered from 0.
        text: all strings are sentences, whatever they look like.
        whole: a file of text is one text, not one a line.
        text_column: of tables, by name or number from 1 (default: the obvious one).
        header, separator: of CSV and TSV, as --data.header and --data.separator.
        encoding: of texts and tables (default: UTF-8, or UTF-16 by its mark).

    Returns:
        One `Prediction` a row: ``label``, ``probability`` and ``top`` of classifiers, ``value`` of
        regressors, ``tokens`` of language models, ``masks`` and ``filled`` of masked ones.

    Raises:
        UnsupportedError: the model writes whole sequences: `generate` is for that.
        DataError: what the model cannot read, or nothing at all.
        CheckpointError: there is no run, or its datastore is gone.
        DivergedError: its weights are not finite.
    """
    if isinstance(run, Model):
        reader = Predictor.of(run, tokenizer=tokenizer, classes=classes)
    else:
        reader = Predictor.load(run, device=device, tokenizer=tokenizer, classes=classes)
    if isinstance(inputs, np.ndarray | Tensor):
        result = array_inputs(inputs, reader)
    else:
        words = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        how = Reading(text, whole, text_column, header, separator, encoding)
        result = reader.open(words, how)
    return [one for _, one in reader.predict(result.rows, top=top, batch=batch)]
