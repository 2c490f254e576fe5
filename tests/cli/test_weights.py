"""`generate --weights int8` says what it costs, or in one sentence why not."""

import re

import pytest
from commands import Refused, Say, Train

import everyformer as ef
from everyformer.cli import weights
from everyformer.cli.trained import open_run
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.generation import quantised, sampling
from everyformer.training.evaluate import evaluate

WORDS = ("--prompt", "a", "--tokens", "3", "--weights", "int8")


class Uncompiled:
    """Steps by the model itself."""

    def __init__(self, model, state):
        self.model, self.state = model, state

    def __call__(self, token):
        out = self.model(token, state=self.state, last=1)
        self.state = out.state
        return out.logits


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are taken too, and no compiler is called."""
    monkeypatch.setattr(quantised, "SMALL", 1)
    monkeypatch.setattr(quantised, "LEAST", 1)
    monkeypatch.setattr(sampling, "CompiledStep", Uncompiled)


@pytest.mark.usefixtures("any_size")
def test_what_8_bits_cost_is_said_behind_the_text(
    trained: Train, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "TOKENS", 65)
    run = trained("attention")
    code, out, err = say("generate", str(run), *WORDS)
    assert code == 0
    assert len(out) == 1 + 3 + 1
    known = open_run(str(run))
    model, data = known.model(), known.own_dataset("")
    found = [evaluate(each, data, limit=5) for each in (model, quantised.quantised(model))]
    own, rounded = (each["bits_per_byte"] for each in found)
    assert own != rounded
    assert found[0]["scored"] == 80 < evaluate(model, data)["scored"]
    line = (
        f"weights in 8 bits: {rounded:.4f} bits a byte on 80 held-out tokens, "
        f"{rounded - own:+.4f} compared with {own:.4f} in float32"
    )
    assert err.splitlines()[-1] == line
    assert "8 bits" not in say("generate", str(run), *WORDS[:-2])[2]


@pytest.mark.usefixtures("any_size")
def test_without_data_nothing_is_measured_and_it_is_said(trained: Train, say: Say) -> None:
    known = open_run(str(trained("attention")))
    tokenizer = known.tokenizer()
    assert isinstance(tokenizer, Tokenizer)
    ef.save(known.model(), "saved", tokenizer=tokenizer)
    code, _, err = say("generate", "saved", *WORDS)
    assert code == 0
    assert "what 8 bits cost is not measured, since this model does not say" in err


def test_where_it_is_not_faster_it_is_refused(trained: Train, refused: Refused) -> None:
    run = trained("attention", "--width", "32")
    assert "would not be faster" in refused("generate", str(run), "--json", *WORDS)


def test_tasks_that_continue_nothing_are_refused(trained: Train, refused: Refused) -> None:
    run = trained("bert", "--task", "mlm")
    why = "--weights int8 is for runs that continue a text, and this one has the task mlm"
    assert re.match(why, refused("generate", str(run), "--weights", "int8"))
