"""What is said of a model: one output a row, what it reads, whether it claims to be causal."""

import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.cli import main
from everyformer.core.errors import ConfigError, ShapeError
from sequence_laws import Inputs, Subject, check
from sequence_laws.adapters import subject_of

WHOLE = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 32, "max_length": 32}


def not_zero(*sizes):
    assert max(map(float, sizes)) > 1e-6


MORE = [pytest.param(n, marks=pytest.mark.full("seconds each")) for n in ((1,), (5,), (16,))]


@pytest.mark.parametrize("classes", [(), (12,), *MORE])
def test_a_model_that_pools_is_judged_as_what_it_is(classes):
    """Outputs (B,) and (B, C), also of as many classes as there are inputs at some length."""

    class Pools(nn.Module):
        def __init__(self, wrong=""):
            super().__init__()
            self.wrong, self.embed = wrong, nn.Embedding(32, 16)
            self.head = nn.Linear(16, sum(classes) or 1)

        def forward(self, x, mask=None):
            real = torch.ones_like(x) if mask is None else mask
            h = self.embed(x) * (1 if self.wrong == "padding" else real[..., None])
            h = h.sum(1) / (x.shape[1] if self.wrong == "length" else real.sum(1, keepdim=True))
            h = h + h.mean(0) if self.wrong == "batch" else h
            y = self.head(h)
            return y if classes else y[:, 0]

    held = {one.law: one for one in check(Pools())}
    rest = dict.fromkeys(("causality", "streaming", "packing"), "exempt")
    rest |= dict.fromkeys(("order", "cost"), "reported")
    statuses = {law: one.status for law, one in held.items()}
    assert statuses == dict.fromkeys(held, "held") | rest, held
    assert held["causality"].detail == "it gives one output a row, and none at a position"
    assert "a set" in held["order"].detail
    for wrong in ("padding", "length", "batch"):
        broken = [one for one in check(Pools(wrong)) if one.status == "failed"]
        assert {one.law for one in broken} == {"padding", wrong} - {"length"}
        for one in broken:
            given = {"made": Pools(wrong), "print": not_zero}
            exec(one.reproduction.replace("...", "made"), given)
    with pytest.raises(ShapeError, match="one output a row, which cannot be causal"):
        check(Pools(), causal=True)


def test_a_subject_of_a_model_that_pools_is_taken_for_what_it_is():
    class Scores(Subject):
        masks = ("right",)

        def call(self, model, x, padding_mask=None):
            return {"logits": model(x if padding_mask is None else x * padding_mask).sum(1)}[
                "logits"
            ]

    laws = ["causality", "batch", "padding", "numbers"]
    subject = Scores(Ahead(), "scores", Inputs(vocabulary=16))
    found = {one.law: one.status for one in check(subject, laws=laws)}
    assert found == {"causality": "exempt", "batch": "held", "padding": "failed", "numbers": "held"}


class Ahead(nn.Module):
    """It sees one token ahead."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)

    def forward(self, x):
        return self.embed(x) + self.embed(x.roll(-1, 1))


def test_a_claim_that_nobody_made_is_told_how_to_be_denied():
    (guessed,) = check(Ahead(), laws=["causality"])
    assert guessed.detail.endswith("if it is to read both ways, say causal=False (--causal False)")
    (claimed,) = check(Ahead(), laws=["causality"], causal=True)
    assert claimed.status == "failed"
    assert "--causal" not in claimed.detail
    for model in (Ahead(), subject_of(Ahead())):
        (denied,) = check(model, laws=["causality"], causal=False)
        assert denied.status == "exempt"


@pytest.mark.parametrize(
    ("make", "causal", "status"),
    [
        (lambda: nn.GRU(4, 4, batch_first=True), False, "exempt"),
        (lambda: ef.create_mixer("linear", width=8, heads=2, causal=True), False, "exempt"),
        (lambda: ef.create_mixer("linear", width=8, heads=2, causal=False), True, "failed"),
        (lambda: ef.create_model("gpt", "lm", **WHOLE), False, "exempt"),
    ],
)
def test_what_is_said_of_a_kind_that_is_known_is_honoured(make, causal, status):
    (found,) = check(make(), laws=["causality"], causal=causal)
    assert found.status == status


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"width": 8}, "reads token ids below 16, not features of width 8: leave out what"),
        ({"vocabulary": 9}, "reads token ids below 16, not token ids below 9"),
        ({"vocabulary": 16, "width": 8}, "give one of vocabulary=, width= and inputs="),
        ({"claims": "linear", "laws": ["batch"]}, "by the law 'cost' alone"),
    ],
)
def test_what_contradicts_a_subject_is_refused(known, words):
    with pytest.raises(ConfigError, match=words):
        check(subject_of(Ahead()), **known)


def test_a_subject_takes_another_name_and_stays_as_it_is():
    subject = subject_of(Ahead())
    (found,) = check(subject, laws=["batch"], name="other", vocabulary=16, causal=False)
    assert found.member == "other"
    assert (subject.name, subject.causal) == ("Ahead", True)


def test_options_of_models_of_anyone_are_refused_where_there_is_none(capsys):
    assert main(["verify", "linear", "--causal", "False"]) == 2
    assert "--claims describe a model that is no member" in capsys.readouterr().err
    assert main(["verify", "hf:all", "--claims", "linear"]) == 2
    assert "not of hf:all: leave them out" in capsys.readouterr().err
