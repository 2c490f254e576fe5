"""Hidden tokens: as many as the rate says, of the right kinds, at the right places and times."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from data_files import Load, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data import DataConfig, load_dataset
from everyformer.data.batch import IGNORED, Batch
from everyformer.data.counting import counted_loss, sampled
from everyformer.data.masking import MASKED, RANDOM, ends_of, with_sentences
from everyformer.data.selection import Draws
from everyformer.data.tokenizers.package import BPETokenizer, HubTokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.models.build import configure

WORDS = "the quick brown fox jumps over a lazy dog_1, naïve façade: 東京! "
DOCUMENTS = {f"{n}.txt": WORDS * (n + 3) for n in range(40)}


def hidden(batch: Batch) -> torch.Tensor:
    return batch.targets != IGNORED


def restored(batch: Batch) -> torch.Tensor:
    return torch.where(hidden(batch), batch.targets, batch.inputs)


def near_share(count: int, of: int, p: float) -> bool:
    """Within three standard deviations of a binomial share."""
    return abs(count - of * p) <= 3 * math.sqrt(of * p * (1 - p))


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_shares_of_hidden_tokens_are_binomial(
    rate: float, tokenizer: str, tmp_path: Any, load: Load
) -> None:
    data = load(
        write(tmp_path / "d", DOCUMENTS), "mlm", length=128, mask_rate=rate, tokenizer=tokenizer
    )
    windows = load(tmp_path / "d", "lm", length=128, tokenizer=tokenizer)
    kinds = np.zeros(3, dtype=int)
    chosen = free = by_chance = 0
    for step in range(12):
        batch, tokens = data.train_batch(step, 64, 5), windows.train_batch(step, 64, 5).inputs
        at = hidden(batch)
        assert torch.equal(restored(batch), tokens)
        assert not (at & (tokens == data.tokenizer.separator)).any()
        free += int((tokens != data.tokenizer.separator).sum())
        chosen += int(at.sum())
        masked, same = batch.inputs == data.mask_token, batch.inputs == batch.targets
        kinds += [int((at & masked).sum()), int((at & ~masked & ~same).sum()), int(same.sum())]
        by_chance += int((batch.inputs == data.tokenizer.separator).sum())
        by_chance -= int((tokens == data.tokenizer.separator).sum())
    assert near_share(chosen, free, rate)
    # a random token is the true one in 1 of all but the separator
    lucky = RANDOM / (data.tokenizer.vocabulary - 1)
    shares = (MASKED, RANDOM - lucky, 1 - MASKED - RANDOM + lucky)
    for count, p in zip(kinds, shares, strict=True):
        assert near_share(int(count), chosen, p)
    assert by_chance == 0


def test_a_mask_inside_the_vocabulary_is_neither_drawn_nor_added(tmp_path: Any) -> None:
    package = pytest.importorskip("tokenizers")
    words = {word: n for n, word in enumerate(("[SEP]", "fox", "[MASK]", "dog", "jumps", "over"))}
    inner = package.Tokenizer(package.models.WordLevel(words, unk_token="over"))
    inner.pre_tokenizer = package.pre_tokenizers.Whitespace()
    tokenizer = HubTokenizer(inner.to_str(), 6, end=0, mask=2)
    documents = {f"{n}.txt": "fox jumps over dog " * 9 for n in range(9)}
    config = DataConfig(str(write(tmp_path / "d", documents)), length=16, cache=str(tmp_path / "c"))
    data = load_dataset(config, "mlm", tokenizer=tokenizer)
    assert (data.vocabulary, data.mask_token) == (6, 2)
    drawn = data._random_tokens(np.random.default_rng(0).random(9999))
    assert np.unique(drawn).tolist() == [1, 3, 4, 5]
    batch = data.train_batch(0, 64, 0)
    assert (batch.inputs == 2).any()
    assert not (batch.targets == 0).any()


def test_random_tokens_are_all_but_the_mask_and_the_separator(tmp_path: Any, load: Load) -> None:
    data = load(write(tmp_path / "d", DOCUMENTS), "mlm", length=128, tokenizer="chars")
    drawn = data._random_tokens(np.random.default_rng(0).random(9999))
    expected = set(range(data.tokenizer.vocabulary)) - {data.tokenizer.separator}
    assert set(drawn.tolist()) == expected
    assert data.vocabulary == data.tokenizer.vocabulary + 1 == data.mask_token + 1


def test_training_hides_anew_at_every_step_and_validation_never(tmp_path: Any, load: Load) -> None:
    # a text of one window, so that every row of every step holds the same tokens
    data = load(write(tmp_path, {"a.txt": "ab" * 200}) / "a.txt", "mlm", length=20)
    one = data.hide(np.full((1, 300), 97), Draws((1, 2)))
    two = data.hide(np.full((1, 300), 97), Draws((1, 3)))
    assert not torch.equal(hidden(one), hidden(two))
    first = data.train_batch(3, 8, 1)
    for step, seed in ((4, 1), (3, 2)):
        assert not torch.equal(hidden(first), hidden(data.train_batch(step, 8, seed)))


def test_held_out_windows_are_hidden_each_in_its_own_way(tmp_path: Any, load: Load) -> None:
    data = load(write(tmp_path, {"a.txt": "a" * 4000}) / "a.txt", "mlm", length=50)
    rows = hidden(next(data.validation_batches(8)))
    assert len({tuple(row) for row in rows.tolist()}) == len(rows) == 8


@pytest.mark.parametrize("length", [9, 16, 99])
def test_a_held_out_token_is_hidden_or_not_whatever_the_batches(
    length: int, tmp_path: Any, load: Load
) -> None:
    data = load(write(tmp_path, {"a.txt": WORDS * 40}) / "a.txt", "mlm", length=length)
    held = data.text.validation
    every = list(data.validation_batches(4))
    inputs, targets = (torch.cat([getattr(b, n) for b in every]) for n in ("inputs", "targets"))
    assert len(inputs) == -(-len(held) // length)
    for size, limit in ((1, None), (7, None), (3, 2)):
        some = list(data.validation_batches(size, limit))
        rows = slice(None)
        if limit is not None:
            rows = [(2 * i + 1) * len(inputs) // (2 * limit) for i in range(limit)]
        assert torch.equal(torch.cat([b.inputs for b in some]), inputs[rows])
        assert torch.equal(torch.cat([b.targets for b in some]), targets[rows])
    whole = torch.where(targets == IGNORED, inputs, targets)
    old = len(inputs) * length - len(held)
    assert whole.flatten()[: (len(inputs) - 1) * length].tolist() == held[: -length + old].tolist()
    assert whole[-1].tolist() == held[-length:].tolist()
    # the last window reaches back, where nothing is scored a second time
    assert (targets[-1, :old] == IGNORED).all()


def test_every_row_hides_something(tmp_path: Any, load: Load) -> None:
    data = load(write(tmp_path, {"a.txt": WORDS * 40}) / "a.txt", "mlm", length=4, mask_rate=0.01)
    assert hidden(data.train_batch(0, 500, 0)).any(1).all()


def test_masks_are_part_of_the_fingerprint(tmp_path: Any, load: Load) -> None:
    path = write(tmp_path, {"a.txt": WORDS * 40}) / "a.txt"
    prints = {
        load(path, "mlm", length=16, **options).fingerprint
        for options in ({}, {"mask_rate": 0.2}, {"seed": 1})
    }
    assert len(prints) == 3


def test_what_cannot_be_hidden_is_refused(tmp_path: Any, load: Load) -> None:
    for rate in (0.0, 1.5):
        with pytest.raises(ConfigError, match="mask_rate"):
            DataConfig(mask_rate=rate)
    with pytest.raises(DataError, match="cannot serve the task mlm"):
        load("copy", "mlm")


# which tokens end a sentence

SENTENCES = "One. Two! Three?\nFour. One. Two! Three?\nFour. One. Two. "


def texts_of(tokenizer):
    return {tokenizer.decode([token]) for token in ends_of(tokenizer)}


def test_ends_are_the_tokens_whose_text_ends_a_sentence():
    assert ends_of(ByteTokenizer()) == (0, 10, 33, 46, 63)
    assert texts_of(CharTokenizer.fit([SENTENCES])) == {".", "!", "?", "\n"}
    assert texts_of(BPETokenizer.fit([SENTENCES], 300)) == {"\0", ".", "!", "?", "\n"}


def test_a_run_tells_its_model_what_its_data_knows(tmp_path):
    (tmp_path / "text.txt").write_text(SENTENCES * 20, encoding="utf-8")
    source = DataConfig(source=str(tmp_path / "text.txt"), length=16, cache=str(tmp_path / "cache"))
    data = load_dataset(source, "mlm")
    sentences = {"per": "sentence", "cpc": 0.25}
    config = configure("etc", "mlm", vocabulary=data.vocabulary, summaries=sentences)
    result = with_sentences(config, data).summaries
    assert (result.ends, result.mask_token) == ((0, 10, 33, 46, 63), 256)
    given = configure("etc", "mlm", summaries={**sentences, "ends": (7,), "mask_token": 3})
    assert with_sentences(given, data) == given
    plain = configure("bert", "mlm")
    assert with_sentences(plain, data) == plain


@pytest.mark.parametrize(
    ("able", "expected"),
    [(("mlm", "classify-text"), "mlm"), (("lm", "mlm"), "lm"), (("seq2seq",), "lm")],
)
def test_the_natural_task_is_one_that_the_model_has(
    able: tuple[str, ...], expected: str, tmp_path: Any
) -> None:
    path = write(tmp_path, {"a.txt": WORDS * 40}) / "a.txt"
    config = DataConfig(source=str(path), cache=str(tmp_path / "cache"), length=16)
    assert load_dataset(config, able=able).task == expected


def test_counting_is_of_single_tokens_since_the_one_before_may_be_hidden(load: Load, tmp_path):
    data = load(write(tmp_path / "texts", DOCUMENTS), "mlm")
    train, held_out = sampled(data.text.train), sampled(data.text.validation)
    single = counted_loss(train, held_out, data.vocabulary, grams=1)
    assert data.counting == single > data.text.counting
