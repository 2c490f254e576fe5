"""What no mixer can mix is refused in the library's own words, by every mixer alike."""

from itertools import product
from typing import Any

import pytest
import torch

from everyformer import create_mixer, create_model, functional, list_members
from everyformer.core.errors import EveryformerError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer

MIXERS = [member.name for member in list_members() if member.is_mixer]


def build(name: str) -> Mixer:
    sizes: dict[str, Any] = {"width": 16, "heads": 2, "max_length": 32}
    try:
        return create_mixer(name, causal=True, **sizes).eval()
    except EveryformerError:
        return create_mixer(name, causal=False, **sizes).eval()


X = torch.zeros(2, 8, 16)
CALLS: list[tuple[torch.Tensor, Mask | None, str]] = [
    (X[:0], None, "at least one row"),
    (X[:, :0], None, "one token"),
    (X[0], None, r"must be \(batch, length, width\)"),
    (X[..., :6], None, r"x of `width=16`, not \(2, 8, 6\)"),
    (X.long(), None, "embed tokens first"),
    (X, Mask(padding_mask=X[..., 0]), r"mask.padding_mask is \(2, 8\) float32"),
    (X, Mask(padding_mask=X[:, :7, 0].bool()), r"mask.padding_mask is \(2, 7\) bool"),
    (X, Mask(padding_mask=X[:1, :, 0].bool()), r"mask.padding_mask is \(1, 8\) bool"),
    (X, Mask(documents=X[:, :7, 0].long()), r"mask.documents is \(2, 7\) int64"),
    (X, Mask(documents=X[..., 0]), r"mask.documents is \(2, 8\) float32.*whole number"),
]


@pytest.mark.parametrize("name", MIXERS)
def test_calls_that_cannot_be_are_refused(name: str) -> None:
    mixer = build(name)
    for (x, mask, said), run in product(CALLS, (mixer, mixer.reference)):
        with pytest.raises(ShapeError, match=said):
            run(x, mask=mask)


@pytest.mark.parametrize("name", MIXERS)
def test_what_it_does_not_know_is_refused(name: str) -> None:
    mixer, x = build(name), torch.randn(2, 8, 16)
    if "bias" not in mixer.supported_masks:
        with pytest.raises(UnsupportedError, match="bias"):
            mixer(x, mask=Mask(bias=torch.zeros(8, 8)))
    if not mixer.causal:
        with pytest.raises(UnsupportedError, match="no exact streaming form"):
            mixer.init_state(2)


def streams(name: str) -> bool:
    try:
        build(name).init_state(1)
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize("name", list(filter(streams, MIXERS)))
def test_states_of_others_are_refused(name: str) -> None:
    mixer, x = build(name), torch.randn(2, 8, 16)
    own = mixer.init_state(3)
    with pytest.raises(ShapeError, match="the state has 3 rows and x has 2"):
        mixer(x, state=own)
    other = build("aft-simple" if name != "aft-simple" else "linear").init_state(2)
    with pytest.raises(ShapeError, match=rf"{name} continues from its own state"):
        mixer(x, state=other)


@pytest.mark.parametrize("name", ["rope", "sinusoidal", "aft-conv"])
def test_models_refuse_states_of_others(name: str) -> None:
    model = create_model(name, width=16, heads=2, layers=1, max_length=8)
    tokens, own = torch.zeros(2, 3, dtype=torch.long), model.init_state(3)
    with pytest.raises(ShapeError, match="the state has 3 rows and x has 2"):
        model(tokens, state=own)
    for other in (own.layers[0].reorder(torch.tensor([0, 1])), True):
        with pytest.raises(ShapeError, match=f"StackState, not from a {type(other).__name__}"):
            model(tokens, state=other)


def test_models_refuse_states_of_other_depths() -> None:
    shallow, deep = (create_model("gpt", width=16, heads=2, layers=n, max_length=8) for n in (2, 3))
    tokens = torch.zeros(1, 3, dtype=torch.long)
    for model, other in ((shallow, deep), (deep, shallow)):
        own, given = (len(list(m.stack.blocks)) for m in (model, other))
        with pytest.raises(ShapeError, match=f"is of {given} layers, but this model has {own}"):
            model(tokens, state=other.init_state(1))


CROSSING = [member.name for member in list_members() if member.is_mixer and member.can("cross")]


@pytest.mark.parametrize("name", CROSSING)
def test_contexts_of_unequal_parts_are_refused(name: str) -> None:
    mixer = create_mixer(name, width=16, heads=2, max_length=32, causal=False).eval()
    x, six, seven = (torch.randn(2, length, 16) for length in (5, 6, 7))
    mixer(x, context=(six, six.clone()))
    for context in ((six, seven), (seven, six), (six, six[:1]), (six[0], six[0]), (six, six[0])):
        for call in (mixer.read_context, lambda c: mixer(x, context=c)):
            with pytest.raises(ShapeError, match="one of keys and one of values"):
                call(context)
    for rows in (six[:1], six.repeat(2, 1, 1)):
        for run in (mixer, mixer.reference):
            with pytest.raises(ShapeError, match=f"x has 2 rows, but the context {len(rows)}"):
                run(x, context=rows)


def test_an_encoded_row_is_read_by_a_row_or_by_as_many() -> None:
    model = create_model("transformer", "seq2seq", width=16, heads=2, layers=1, vocabulary=9).eval()
    source, targets = torch.randint(9, (2, 5)), torch.randint(9, (4, 3))
    expected = model(source.repeat_interleave(2, 0), targets=targets).logits
    torch.testing.assert_close(model(source, targets=targets).logits, expected)
    for rows, others in ((2, 3), (4, 2), (4, 6)):
        with pytest.raises(ShapeError, match=f"{others} rows cannot read {rows} encoded ones"):
            model(torch.randint(9, (rows, 5)), targets=torch.randint(9, (others, 3)))


@pytest.mark.parametrize(
    ("k", "v"),
    [((1, 2, 7, 8), (1, 2, 6, 4)), ((1, 2, 6, 8), (1, 1, 6, 4)), ((2, 2, 6, 8), (2, 2, 6, 8)),
     ((1, 3, 6, 8), (1, 3, 6, 8)), ((1, 2, 6, 4), (1, 2, 6, 4)), ((2, 6, 8), (2, 6, 8))],
)  # fmt: skip
def test_attention_of_parts_that_do_not_fit_is_refused(k: Any, v: Any) -> None:
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(ShapeError, match=r"not \(1, 2, 5, 8\), \("):
        functional.attention(q, torch.randn(k), torch.randn(v))


@pytest.mark.parametrize("task", ["lm", "mlm", "classify-text"])
def test_models_refuse_batches_of_no_rows(task: str) -> None:
    model = create_model("attention", task, width=16, heads=2, layers=1)
    with pytest.raises(ShapeError, match="at least one row"):
        model(torch.zeros(0, 8, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"expansion": 0.01},
            "`expansion=0.01` of `width=16` leaves no channel: give at least 0.06",
        ),
        ({"name": "gmlp", "mlp_ratio": 0.02}, "`mlp_ratio=0.02` of `width=16` leaves no channel"),
        ({"widths": {"value_dim": -1}}, "`attention.widths.value_dim` must be at least 1, not -1"),
    ],
)
def test_sizes_that_leave_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    options = {"name": "attention", "width": 16, "heads": 2, "layers": 1, **options}
    with pytest.raises(EveryformerError, match=said):
        create_model(options.pop("name"), **options)
