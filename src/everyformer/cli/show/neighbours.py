"""Page of `everyformer show RUN neighbours --store STORE`: a text's neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.cli.parsing import say
from everyformer.cli.show.options import ShowOptions, folder_of, tell
from everyformer.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from everyformer.cli.trained import TrainedRun
    from everyformer.data.tokenizers.base import Tokenizer

NEIGHBOURS = "neighbours"
LENGTH = 256
MOST = 8
"""neighbours of a token on the page"""


def draw_neighbours(options: ShowOptions) -> int:
    """Write the page, and print where it is."""
    if options.text is not None and options.data is not None:
        raise ConfigError("--text and --data are both what is read: give one of them")
    from everyformer.cli.trained import open_run
    from everyformer.datastores.neighbours import explain
    from everyformer.datastores.reader import StoreReader
    from everyformer.models.knn_lm import KnnLanguageModel
    from everyformer.report.neighbours import write_neighbours

    trained = open_run(options.run)
    tokenizer = trained.text_tokenizer()
    tokens, name = _tokens(trained, tokenizer, options)
    tokens = tokens[: options.length or LENGTH]
    if len(tokens) < 2:
        raise ConfigError("the text has fewer than two tokens, and each is predicted from others")
    model = trained.reading(None, options.store, options.knn, options.nearest)
    if not isinstance(model, KnnLanguageModel):
        raise ConfigError(f"'{NEIGHBOURS}' lie in a datastore: say which with --store")
    explained = explain(model, tokenizer, tokens, trained.length, MOST)
    folder = folder_of(options, trained.path)
    assert isinstance(model.reader, StoreReader)
    knn, store = model.options, model.reader.index.store
    facts = [name, f"run {trained.path}", f"store {store.folder}", f"k = {knn.k:,}"]
    facts += [f"lambda = {knn.weight:g}", f"T = {knn.temperature:g}"]
    first = tokenizer.decode(tokens[:1].tolist())
    path = write_neighbours(explained, first, facts, folder / f"{NEIGHBOURS}.html")
    losses = [
        -sum(t.mixed for t in explained) / len(explained),
        -sum(t.of_model for t in explained) / len(explained),
    ]
    shows = (
        f"neighbours of {len(explained):,} tokens: loss {losses[0]:.4f} with the store, "
        f"{losses[1]:.4f} without"
    )
    return tell(options, path, shows)


def _tokens(
    trained: TrainedRun, tokenizer: Tokenizer, options: ShowOptions
) -> tuple[np.ndarray, str]:
    """Tokens that are read, and their name; without words, the run's held-out text."""
    import numpy as np

    from everyformer.data.sources import open_source
    from everyformer.data.text import TextDataset
    from everyformer.datastores.texts import Texts

    if options.text is not None:
        return np.asarray(tokenizer.encode(options.text), np.int64), "a text"
    if options.data is not None:
        with open_source(options.data) as source:
            text = next(iter(Texts(source, tokenizer)))
        return text.tokens, text.name
    dataset = trained.own_dataset("give --text TEXT or --data FILE")
    assert isinstance(dataset, TextDataset)
    say(f"{dataset.name}: {dataset.split}")
    return dataset.validation[:], f"held-out text of {dataset.name}"
