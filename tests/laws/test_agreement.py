"""Each way to compute the same: a plain call, embeddings, gradients, implementations."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.adapters import subject_of
from sequence_laws.adapters.hugging_face import hugging_face
from sequence_laws.adapters.transformers import pretrained
from sequence_laws.inputs import Inputs
from sequence_laws.subject import Subject

OTHERS = (
    "causality",
    "padding",
    "batch",
    "lengths",
    "numbers",
    "gradients",
    "determinism",
    "saving",
)


class Masked(nn.Module):
    """A mean over earlier embeddings that are real; ``wrong`` names what goes wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(x) if mask is None else mask.long()
        h = self.embed(x) * real[..., None]
        if self.wrong == "a mask of ones" and mask is not None:
            h = 1.1 * h
        if self.wrong == "a faster path" and not torch.is_grad_enabled():
            h = 1.1 * h
        if self.wrong == "gradients with a mask" and torch.is_grad_enabled():
            h = h if mask is None else 1.1 * h
        if self.wrong == "a path without a mask" and torch.is_grad_enabled() and mask is not None:
            raise ValueError("no gradients with a mask")
        return self.head(h.cumsum(1) / real.cumsum(1).clamp(1)[..., None])


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        ("", "held", "equal with a mask of ones, with gradients"),
        (
            "a mask of ones",
            "failed_by_default",
            r"with a mask of ones output 0 of row 0 is off by .*, from that of model\(x\) "
            r"\(length 33\); to have it hold, pass no mask",
        ),
        ("a faster path", "failed", "with gradients output 0 of row 0 is off by"),
        ("gradients with a mask", "failed", r"with padding on the right \(length 33\)"),
        (
            "a path without a mask",
            "held",
            "not with gradients, with padding on the right: .*no gradients with a mask",
        ),
    ],
)
def test_each_way_is_tried_for_each_mask(wrong: str, status: str, words: str) -> None:
    torch.manual_seed(0)
    subject = subject_of(Masked(wrong), vocabulary=16)
    subject.build = (*_BUILD, f"model = Masked({wrong!r})")
    [one] = check(subject, laws=("agreement",))
    assert one.status == status, one.detail
    assert re.search(words, one.detail), one.detail
    if "failed" in status:
        assert all(v.status not in ("failed",) for v in check(subject, laws=OTHERS))
        assert _printed(one.reproduction) > 1e-3


_BUILD = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})",
    "from test_agreement import Masked",
)


def _printed(program: str) -> float:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return float(re.findall(r"[\d.]+(?:e-?\d+)?", ran.stdout)[0])


class Implemented(Subject):
    """A model with an implementation that forgets a mask of holes, or documents."""

    masks = ("right", "holes")
    packs = "documents"

    def __init__(self, *args: Any, **known: Any) -> None:
        super().__init__(*args, **known)
        self.forgets = ""

    def variants(self) -> Iterator[tuple[str, Self]]:
        yield "attention one", self
        yield "attention two", self.otherwise(forgets=self.wrong)

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        mask = self.real(x, padding_mask)
        holes = mask is not None and bool((mask.long().diff(dim=1) > 0).any())
        return model(x, None if holes and self.forgets == "holes" else mask)

    def packed(self, model: nn.Module, x: Tensor, documents: Tensor) -> Tensor:
        if self.forgets == "documents":
            return model(x)
        rows = []
        for row, of in zip(x, documents, strict=True):
            rows.append(torch.cat([model(row[None, of == n]) for n in of.unique()], 1))
        return torch.cat(rows)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "with attention one, with attention two"),
        ("holes", r"attention two output 2 of row 1 .* with holes in a row"),
        ("documents", r"attention two output 5 of row 0 .* of two documents"),
    ],
)
def test_each_implementation_gives_the_same_for_each_mask_and_documents(
    wrong: str, words: str
) -> None:
    torch.manual_seed(0)
    subject = Implemented(Masked(), "it", Inputs(vocabulary=16))
    subject.wrong = wrong
    one, packing, padding = check(subject, laws=("agreement", "packing", "padding"))
    assert one.status == ("failed" if wrong else "held"), one.detail
    assert re.search(words, one.detail), one.detail
    assert packing.status == padding.status == "held"


def test_embeddings_are_another_form_of_the_same_tokens() -> None:
    """As of a model that scales embeddings where it looks them up itself."""
    pytest.importorskip("transformers")
    made = hugging_face("gpt2")
    [held] = check(made, laws=("agreement",))
    assert held.status == "held"
    assert "from inputs_embeds" in held.detail
    assert "by scaled_dot_product_attention" in held.detail
    kind: Any = type(made.model)

    class Scales(kind):
        def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **more: Any) -> Any:
            if inputs_embeds is not None:
                inputs_embeds = 2 * inputs_embeds
            return super().forward(input_ids=input_ids, inputs_embeds=inputs_embeds, **more)

    subject = pretrained(Scales(made.model.config), "scales", causal=True)
    assert subject is not None
    [one] = check(subject, laws=("agreement",))
    assert one.status == "failed"
    assert "from inputs_embeds output 0 of row 0 is off by" in one.detail


@pytest.mark.parametrize("forgets", ["encoder_attention_mask", "past_key_values", ""])
def test_the_states_of_an_encoder_are_read_next_to_the_inputs(forgets: str) -> None:
    """A decoder that reads their padding breaks agreement; one that forgets its past only there
    breaks streaming."""
    pytest.importorskip("transformers")
    made = hugging_face("BartForCausalLM")
    kind: Any = type(made.model)

    class Forgets(kind):
        def forward(
            self,
            input_ids: Any = None,
            encoder_hidden_states: Any = None,
            encoder_attention_mask: Any = None,
            **more: Any,
        ) -> Any:
            given = {"encoder_attention_mask": encoder_attention_mask, **more}
            if forgets and encoder_hidden_states is not None:
                given[forgets] = None
            return super().forward(
                input_ids=input_ids, encoder_hidden_states=encoder_hidden_states, **given
            )

    Forgets.forward.__signature__ = inspect.signature(kind.forward)
    subject = pretrained(Forgets(made.model.config), "forgets", causal=True)
    broken = {v.law: v.detail for v in check(subject, laws=("agreement", "streaming"))}
    for law, words in (
        ("agreement", "with other states in the padding of the encoder output 0 of row 0"),
        ("streaming", "with the states of an encoder output"),
    ):
        wrong = (
            forgets == {"agreement": "encoder_attention_mask", "streaming": "past_key_values"}[law]
        )
        assert broken[law].startswith("with the states of an encoder ") is wrong, broken[law]
        assert (words in broken[law]) is wrong, broken[law]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("causal", [False, True])
def test_the_fast_path_of_torchs_encoder_agrees_with_its_slow_one(causal: bool) -> None:
    """Without gradients it is one kernel, with padding on nested tensors."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    [one] = check(nn.TransformerEncoder(layer, 2), laws=("agreement",), causal=causal)
    if causal:  # a query that may see nothing, of padding on the left, is not finite in the kernel
        assert re.search(r"with gradients output 2 of row 1 is off by nan.*on the left", one.detail)
    else:
        assert one.status == "held"
        assert "with gradients" in one.detail


@pytest.mark.parametrize(("rows_first", "status"), [(True, "failed"), (False, "held")])
def test_torchs_decoder_with_padding_on_the_left(rows_first: bool, status: str) -> None:
    """Without gradients attention is one kernel, in which queries without a key are not finite, and
    with them what reads those; with gradients, and for (L, B, d), it is another."""
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=rows_first)
    [one] = check(nn.TransformerDecoder(layer, 2), laws=("agreement",))
    assert one.status == status, one.detail
    if status == "held":
        assert "with another memory in its padding" in one.detail
    else:
        assert re.search(r"with gradients output 2 of row 1 is off by nan.*on the left", one.detail)


class OneLength(nn.Module):
    """Tokens of one length alone, beyond that which is usually compared."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(16, 4), nn.Parameter(torch.ones(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.embed(x) + self.places).cumsum(1)


def test_a_model_of_one_long_length_is_compared_at_that() -> None:
    [one] = check(OneLength(), laws=("agreement",), vocabulary=16)
    assert one.status == "held", one.detail


def test_documents_in_a_row_of_one_long_length_are_not_judged() -> None:
    class Packs(OneLength):
        def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
            return super().forward(x)

    [one] = check(Packs(), laws=("packing",), vocabulary=16)
    assert one.status == "undecided", one.detail


def flexes(wrong: str) -> nn.Module:
    """Llama, with something wrong where it attends by flex attention alone."""
    made = hugging_face("llama")
    kind: Any = type(made.model)

    class Flexes(kind):
        def forward(
            self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None
        ) -> Any:
            if flex := self.config._attn_implementation == "flex_attention":
                documents = wrong == "documents" and attention_mask is None
                position_ids = None if documents else position_ids
                attention_mask = None if wrong == "a mask" else attention_mask
            y = super().forward(input_ids, attention_mask, position_ids, use_cache=False)
            compiled = wrong == "float32" and y.logits.dtype is torch.float32
            y.logits = y.logits * (1.1 if flex and (compiled or wrong == "all") else 1)
            return y

    torch.manual_seed(0)
    return Flexes(made.model.config)


@pytest.mark.full("compiles for half a minute each")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("all", r"flex output 0 of row 0 is off by .*from that of model\(.*\)\.logits \(length"),
        ("float32", "flex that is compiled output 0 of row 0"),
        ("a mask", "flex output 2 of row 1 .* with holes in a row"),
        ("documents", "flex output 5 of row 0 .* of two documents"),
        ("", r"flex that is compiled \(by flex_attention, scaled_dot_product_attention\)$"),
    ],
)
def test_a_deep_look_compares_flex_attention(wrong: str, words: str) -> None:
    pytest.importorskip("transformers")
    build = (_BUILD[0], "from test_agreement import flexes", f"model = flexes({wrong!r})")
    subject = pretrained(flexes(wrong), "flexes", causal=True, build=build)
    assert subject is not None
    [usual] = check(subject, laws=("agreement",))
    assert usual.status == "held", usual.detail
    [one] = check(subject, laws=("agreement",), depth="deep")
    assert one.status == ("failed" if wrong else "held"), one.detail
    assert re.search(words, one.detail), one.detail
    if wrong:
        assert _printed(one.reproduction) > 1e-3


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        (False, "not with attention flex: ValueError: GPT2LMHeadModel does not support an"),
        (True, "not with attention flex: its class takes it, and another runs"),
    ],
)
def test_flex_attention_that_does_not_run_is_said(unknown: bool, words: str) -> None:
    pytest.importorskip("transformers")
    subject = hugging_face("gpt2")
    if unknown:
        subject.model.set_attn_implementation = lambda way: None
    [one] = check(subject, laws=("agreement",), depth="deep")
    assert one.status == "held"
    assert words in one.detail


class Called(nn.Module):
    """Running sums, with words that change how they are computed; ``wrong`` what they give."""

    def __init__(self, wrong: str = "", attends: str = "sdpa") -> None:
        super().__init__()
        self.wrong, self.kept, self.window = wrong, torch.zeros(()), 40
        self.config = SimpleNamespace(attn_implementation=attends)
        self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(
        self, x: Tensor, labels: Tensor | None = None, use_cache: bool = False
    ) -> tuple[Tensor, ...]:
        h = self.embed(x)
        if self.wrong == "teacher" and labels is not None:  # no law forbids it
            h = h + self.embed(labels)
        if self.config.attn_implementation == "eager":
            every = torch.ones(x.shape[1], x.shape[1]).tril()
            h = (every if self.wrong != "a window" else every.triu(-40)).to(h) @ h
        elif self.config.attn_implementation == "sdpa":
            h = h.cumsum(1)
        else:
            raise ValueError("it knows two")
        y = self.head(h)
        if use_cache:
            self.kept = self.kept + 1  # which moves nothing now, and the next pass where it is read
            y = y + (self.kept - 1) if self.wrong == "remembers" else y
            return (y * (1.1 if self.wrong == "use_cache" else 1), h)
        if labels is None:
            return (y,)
        if self.wrong == "a loss alone":
            return (y.mean(),)
        if self.wrong == "flat":
            return y.flatten(0, 1), y.mean()
        y = y * (1.1 if self.wrong == "labels" else 1)
        return (y[:, :-1] if self.wrong == "cut" else y), y.mean()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "with use_cache=True, with use_cache=False, with labels, with attention eager, with"),
        ("teacher", "with use_cache=False, with attention eager"),
        ("remembers", "with labels"),
        ("a loss alone", "; not with labels: "),
        ("flat", "; not with labels: "),
    ],
)
def test_words_that_a_module_takes_change_no_outputs(wrong: str, words: str) -> None:
    torch.manual_seed(0)
    model = Called(wrong)
    [one] = check(model, laws=["agreement"], vocabulary=16)
    assert one.status == "held", one.detail
    assert words in one.detail
    assert model.config.attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("labels", "with labels output 0 of row 0 is off by"),
        ("cut", "with labels it gives 80 outputs of 81 inputs"),
        ("use_cache", "with use_cache=True output 0 of row 0 is off by"),
        ("a window", "with attention eager output 41 of row 0 is off by"),
    ],
)
def test_words_that_change_outputs_are_found(wrong: str, words: str) -> None:
    torch.manual_seed(0)
    [one] = check(model := Called(wrong), laws=["agreement"], vocabulary=16)
    assert one.status == "failed", one.detail
    assert one.detail.startswith(words), one.detail
    assert shown(one, model) > 1e-3


@pytest.mark.parametrize("attends", ["eager", "flash"])
def test_a_word_that_is_not_read_or_not_known_is_no_implementation(attends: str) -> None:
    torch.manual_seed(0)
    model = Masked()
    model.attn_implementation = attends
    [one] = check(model, laws=["agreement"], vocabulary=16)
    assert one.status == "held"
    assert "attention" not in one.detail
