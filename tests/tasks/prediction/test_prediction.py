"""What is predicted is what the model says of each row, whatever rows are beside it."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from answering import OPTIONS, SIZES, TEXTS, given, reader
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    UnsupportedError,
)
from everyformer.data.tokenizers.package import BPETokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.tasks.prediction.predictor import Predictor
from everyformer.tasks.prediction.records import Prediction, Row
from helpers import build_model, close


def rows(task: str) -> Iterator[Row]:
    return (Row(str(number), value) for number, value in enumerate(given(task)))


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def numbers(found: Prediction) -> list[float]:
    """All probabilities and values of a prediction."""
    values = found.value if isinstance(found.value, tuple) else [found.value or 0.0]
    candidates = [*found.top, *found.tokens, *itertools.chain(*found.masks)]
    return [*values, *(one.probability for one in candidates)]


@pytest.mark.parametrize("member", ["attention", "gmlp", "aft-local"])
@pytest.mark.parametrize("task", OPTIONS)
def test_a_row_alone_is_answered_as_in_a_batch(task: str, member: str) -> None:
    one = reader(task, member=member)
    together = [found for _, found in one.predict(rows(task), batch=16)]
    for size in (1, 2):
        apart = [found for _, found in one.predict(rows(task), batch=size)]
        assert [found.input for found in apart] == ["0", "1", "2", "3", "4"]
        for here, there in zip(together, apart, strict=True):
            close(exact(numbers(here)), exact(numbers(there)))
            assert (here.label, here.filled) == (there.label, there.filled)
    assert len({tuple(numbers(found)) for found in together}) == 5


def test_classes_come_with_the_models_probabilities_the_greatest_first() -> None:
    one = reader("classify-text", classes=("x", "y", "z"))
    for (_, found), text in zip(one.predict(rows("classify-text"), top=9), TEXTS, strict=True):
        p = one.model(torch.tensor([list(text.encode())])).logits[0].softmax(-1)
        order = p.argsort(descending=True).tolist()
        assert [candidate.id for candidate in found.top] == order
        assert [candidate.text for candidate in found.top] == ["xyz"[index] for index in order]
        close(exact([candidate.probability for candidate in found.top]), p[order])
        assert (found.label, found.probability) == (found.top[0].text, found.top[0].probability)


@pytest.mark.parametrize("task", ["regress-text", "regress-series"])
def test_numbers_are_in_the_units_of_the_targets(task: str) -> None:
    one = reader(task)
    for (_, found), value in zip(one.predict(rows(task)), given(task), strict=True):
        read = list(value.encode()) if isinstance(value, str) else value
        logits = one.model(torch.tensor(np.array(read))[None]).logits[0]
        found_values = found.value if isinstance(found.value, tuple) else (found.value,)
        close(exact(found_values), logits)


def test_the_next_tokens_are_those_after_a_texts_last() -> None:
    one = reader("lm")
    for (_, found), text in zip(one.predict(rows("lm"), top=3), TEXTS, strict=True):
        p = one.model(torch.tensor([list(text.encode())])).logits[0, -1].softmax(-1)
        assert [candidate.id for candidate in found.tokens] == p.topk(3).indices.tolist()
        close(exact([c.probability for c in found.tokens]), p.topk(3).values)


def test_each_mask_is_filled_by_what_the_model_says_there_and_never_by_a_mask() -> None:
    one = reader("mlm")
    one.model.head.bias.data[256] = 1e3
    [(_, found)] = one.predict([Row("", "a [MASK] b _____!")])
    ids = torch.tensor([[97, 32, 256, 32, 98, 32, 256, 33]])
    z = one.model(ids).logits[0, [2, 6], :256]
    for candidates, p in zip(found.masks, z.softmax(-1), strict=True):
        close(exact([c.probability for c in candidates]), p.topk(5).values)
        assert [c.id for c in candidates] == p.topk(5).indices.tolist()
    best = z.argmax(-1).tolist()
    filled = bytes([97, 32, best[0], 32, 98, 32, best[1], 33]).decode("utf-8", "replace")
    assert found.filled == filled


RUSSIAN = "белый кот спит. белый кот ест. серый пёс видит. " * 20


@pytest.mark.parametrize(
    ("learned", "text", "taken"),
    [(RUSSIAN, "белый [MASK] спит", True), ("ab\n" * 90, "ab [MASK] ab", False)],
)
def test_a_mark_takes_the_space_where_tokens_begin_with_theirs(
    learned: str, text: str, taken: bool
) -> None:
    tokenizer = BPETokenizer.fit([learned], 350)
    assert len(tokenizer.encode(" a")) == 2
    assert (len(tokenizer.encode(" кот")) == 1) == taken
    model = build_model(
        "attention",
        "mlm",
        **SIZES,
        vocabulary=tokenizer.vocabulary + 1,
        max_length=32,
        head_bias=True,
    )
    one = Predictor.of(model, tokenizer=tokenizer)
    [word] = tokenizer.encode(" кот" if taken else "a")[:1]
    one.model.head.bias.data[word] = 1e3
    [(_, found)] = one.predict([Row("", text)])
    assert found.filled == text.replace(
        " [MASK]", " кот" if taken else " " + tokenizer.decode([word])
    )


@pytest.mark.parametrize(
    ("task", "text", "read", "said"),
    [
        ("classify-text", "abcdefgh", "abcd", "1 of 2 rows longer than 4 tokens: the first 4"),
        ("lm", "abcdefgh", "efgh", "1 of 2 rows longer than 4 tokens: the last 4"),
        ("mlm", "abcdef___gh", "ef___g", "what is about a mask"),
    ],
)
def test_texts_beyond_the_models_length_are_cut_and_counted(
    task: str, text: str, read: str, said: str
) -> None:
    one = reader(task, length=4)
    pairs = one.predict([Row("", text), Row("", read)])
    long, short = (numbers(found) for _, found in pairs)
    assert long == short
    assert said in " ".join(one.notes())


def test_rows_without_text_keep_their_place() -> None:
    one = reader("classify-text")
    found = [p.label for _, p in one.predict([Row("", text) for text in ("", "a", "  ", "b")])]
    assert [label is None for label in found] == [True, False, True, False]
    assert "2 rows without text" in " ".join(one.notes())


def test_rows_are_read_as_they_are_needed() -> None:
    taken = []

    def endless() -> Iterator[Row]:
        for number in itertools.count():
            taken.append(number)
            yield Row(str(number), "a")

    predictions = reader("classify-text").predict(endless(), batch=4)
    assert next(predictions)[1].input == "0"
    assert len(taken) == 4


def test_members_that_draw_random_numbers_draw_the_same_for_every_batch() -> None:
    one = reader("classify-text")
    drawn: list[float] = []
    one.model.register_forward_pre_hook(lambda *_: drawn.append(float(torch.rand(()))))
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        list(one.predict(rows("classify-text"), batch=2))
        assert torch.equal(torch.get_rng_state(), before)
    assert len(drawn) == 6
    assert len({*drawn}) == 1


def test_tokens_that_are_no_whole_character_go_by_their_number() -> None:
    one = reader("lm")
    torch.nn.init.zeros_(one.model.head.weight)
    torch.nn.init.zeros_(one.model.head.bias)
    one.model.head.bias.data[[0xC3, 65]] = torch.tensor([9.0, 8.0], dtype=torch.float64)
    [(_, found)] = one.predict([Row("", "b")], top=2)
    assert [candidate.text for candidate in found.tokens] == ["<0xC3>", "A"]


def test_a_text_does_not_go_on_from_characters_that_training_never_had() -> None:
    going_on = Predictor.of(reader("lm").model, tokenizer=CharTokenizer("ab "))
    with pytest.raises(DataError, match="'€', which the training text never had"):
        list(going_on.predict([Row("", "a€b")]))


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("seq2seq", {"vocabulary": 9}),
        ("pixels", {"image": (1, 4, 4)}),
        ("super-resolution", {"image": (1, 4, 4), "source_image": (1, 2, 2)}),
    ],
)
def test_models_that_write_whole_sequences_are_shown_by_generate(
    task: str, options: dict[str, Any]
) -> None:
    member = "transformer" if task == "seq2seq" else "attention"
    model = ef.create_model(member, task, width=8, heads=2, layers=1, **options)
    with pytest.raises(UnsupportedError, match=f"task {task}, .*everyformer generate"):
        Predictor.of(model)


def test_no_numbers_are_no_answer() -> None:
    one = reader("classify-text")
    one.model.pool.head.bias.data[0] = torch.nan  # type: ignore[union-attr, union-attr]
    with pytest.raises(DivergedError, match="no finite numbers"):
        list(one.predict([Row("", "a")]))


def test_a_saved_model_predicts_by_its_folder(tmp_path: Any) -> None:
    one = reader("classify-text")
    ef.save(one.model, tmp_path / "saved", tokenizer=ByteTokenizer())
    ef.save(one.model, tmp_path / "bare")
    [expected] = [p for _, p in one.predict([Row("a", "a")])]
    [found] = ef.predict(tmp_path / "saved", "a")
    assert (found.label, found.input) == (expected.label, "a")
    assert found.label in ("0", "1", "2")
    [named] = ef.predict(tmp_path / "saved", ["a"], classes=("x", "y", "z"))
    assert named.label == "xyz"[int(found.label)]
    with pytest.raises(ConfigError, match="has no tokenizer"):
        ef.predict(tmp_path / "bare", "a")
    assert ef.predict(tmp_path / "bare", np.array([[97]]))[0].label == found.label
    with pytest.raises(ConfigError, match="has 3 classes, not 2"):
        ef.predict(tmp_path / "saved", "a", classes=("x", "y"))
    with pytest.raises(CheckpointError, match="no saved model and no run"):
        ef.predict(tmp_path / "nowhere", "a")
    with pytest.raises(DataError, match="no rows"):
        ef.predict(tmp_path / "saved", [])


@pytest.mark.parametrize(
    ("task", "array", "said"),
    [
        ("classify-text", np.array([[300]]), "a token 300, but the model has 256"),
        ("classify-series", np.zeros((2, 3, 5)), "5 numbers at each step, but the model reads 2"),
        ("classify-image", np.zeros((2, 9)), r"must be \(N, H, W\)"),
        ("classify-text", np.zeros((2, 9)), r"must be \(N, L\) integers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(task: str, array: np.ndarray, said: str) -> None:
    with pytest.raises(DataError, match=said):
        ef.predict(reader(task).model, array)


def test_arrays_of_pictures_are_fitted_to_the_model() -> None:
    model = reader("classify-image").model
    pictures = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 3)).astype(np.uint8)
    expected = [p.top for p in ef.predict(model, pictures, top=3)]
    assert [p.top for p in ef.predict(model, pictures.transpose(0, 3, 1, 2), top=3)] == expected
    larger = pictures.repeat(2, 1).repeat(2, 2)
    assert len(ef.predict(model, larger)) == 2
    assert len(ef.predict(model, larger[..., 0])) == 2


def test_characters_that_training_never_had_are_said() -> None:
    tokenizer = CharTokenizer("ab ")
    model = reader("classify-text").model
    one = Predictor.of(model, tokenizer=tokenizer)
    found = [p for _, p in one.predict([Row("", "a€b"), Row("", "ab")])]
    assert all(p.label is not None for p in found)
    [note] = [note for note in one.notes() if "never had" in note]
    assert note.startswith("1 text with characters")
    assert "'€'" in note
    assert "upper case" not in note
    lower = Predictor.of(model, tokenizer=CharTokenizer("AB "))
    list(lower.predict([Row("", "ab A")]))
    assert [
        note for note in lower.notes() if note.endswith("write them in upper case, which is known")
    ]
    going_on = Predictor.of(reader("lm").model, tokenizer=tokenizer)
    with pytest.raises(DataError, match="'€', which the training text never had"):
        list(going_on.predict([Row("", "a€b")]))
