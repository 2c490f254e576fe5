"""Experiments: every member has one, the quick ones run, and their measures are right."""

import json
import math
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError
from everyformer.core.outputs import ModelOutput
from everyformer.lab.experiments import base, definitions, memories
from everyformer.lab.experiments.gmlp import diagonal_means, toeplitz_share
from everyformer.lab.experiments.kernels import (
    estimated,
    orthogonal_over_independent,
    relative_error,
)
from everyformer.lab.experiments.language import gaps, measured, ngram_bits
from everyformer.lab.experiments.measures import load
from everyformer.lab.experiments.study import Study, StudySetting

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def test_every_member_has_an_experiment_and_every_experiment_a_member():
    for member in ef.list_members():
        assert base.find(member.name), member.name
    for experiment in base.experiments():
        assert base.find(experiment.name) == [experiment]
        assert experiment.members


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("name", ["saturation", "waves", "rotation", "reversible", "near-identity"])
def test_quick_claims_are_seen(name, tmp_path):
    (experiment,) = base.find(name)
    result = base.perform(experiment, StudySetting(seeds=2, say=lambda text: None), tmp_path)
    assert result["holds"], result["sentence"]
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["numbers"] == json.loads(json.dumps(result["numbers"]))
    for figure in result["figures"]:
        assert (tmp_path / figure).stat().st_size > 1000


def test_definitions_are_compared_with_guessing():
    """A model that is surely wrong of values it does not know costs more than ln 16."""
    study = Study(StudySetting(seeds=1, say=lambda text: None), "definitions")
    far = dict(zip(definitions.SIZES, (4.0, 2.78, 2.76, 1.0, 0.1), strict=True))
    for stored, loss in far.items():
        study.numbers[f"with, {stored} stored: far"] = [loss]
        study.numbers[f"with, {stored} stored: near"] = [0.1]
    study.numbers |= {"without, 0 stored: far": [9.0], "without, 0 stored: near": [0.1]}
    outcome = definitions.outcome_of(study)
    assert "Guessing costs 2.77: with 0 and 64 stored" in outcome.sentence
    assert "loses 9.00 there, more than by guessing" in outcome.sentence
    [axis] = outcome.figures["size"].axes
    levels = [line.get_ydata()[0] for line in axis.lines if len(line.get_ydata()) == 2]
    assert levels == pytest.approx([9.0, 2.772588722])
    assert any("guessing" in text.get_text() for text in axis.get_legend().get_texts())
    assert outcome.holds
    study.numbers["with, 8192 stored: far"] = [0.9]
    assert definitions.outcome_of(study).holds
    study.numbers["with, 1024 stored: far"], study.numbers["with, 8192 stored: far"] = [1.5], [1.4]
    assert not definitions.outcome_of(study).holds, "half of guessing is 1.39"


REPLAYED = (
    *("alignment", "asked-returns", "exits", "extension", "far-slots"),
    *("fill-in", "far-sentences", "halting", "inner-losses", "kernel-length"),
    *("key-to-door", "lags", "learned-table", "near-identity", "needle"),
    *("reversible", "rotation", "rounds", "sequences", "spans"),
    *("definitions", "documents", "luck", "shift", "stitching", "waves", "windows"),
)
"""experiments whose sentence and verdict follow from their numbers alone"""


@pytest.mark.filterwarnings("ignore:No artists")
@pytest.mark.parametrize("name", REPLAYED)
def test_a_record_says_what_its_numbers_say(name, monkeypatch):
    """Sentence and verdict are those of the recorded numbers; nothing is trained."""
    record = json.loads((RESULTS / f"{name}.json").read_text())
    numbers = {number: values["values"] for number, values in record["numbers"].items()}
    monkeypatch.setattr(Study, "order", lambda study, names: None)
    monkeypatch.setattr(Study, "seeds", lambda study: study.numbers.update(numbers) or ())
    (experiment,) = base.find(name)
    outcome = experiment.run(StudySetting(seeds=record["seeds"], say=lambda text: None))
    assert (outcome.sentence, outcome.holds) == (record["sentence"], record["holds"])
    if name in ("definitions", "near-identity"):
        assert record["claim"] == experiment.claim


TRAINED = (
    *("addressing", "kernel-length", "toeplitz", "alignment", "fill-in"),
    *("shift", "near-and-far", "four-terms", "inner-losses"),
    *("gates", "constant-state", "lags", "rounds", "routed-copy", "far-sentences", "halting"),
    *("key-to-door", "exits", "spans"),
)


FEW = ("toeplitz", "inner-losses", "lags", "halting", "key-to-door", "spans")
"""of each way of training one"""
OTHERS = pytest.mark.full("their trainer is tried in others")


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=OTHERS) for n in TRAINED]
)
def test_trained_experiments_run_from_end_to_end(name, tmp_path):
    (experiment,) = base.find(name)
    setting = StudySetting(seeds=1, scale=0.002, say=lambda text: None)
    result = base.perform(experiment, setting, tmp_path)
    assert all(math.isfinite(v) for n in result["numbers"].values() for v in n["values"])
    assert not result["holds"], "two steps of training cannot show the claim"


def test_arms_of_a_seed_start_from_the_same_random_numbers():
    messages = []
    study = Study(StudySetting(seeds=2, say=messages.append), "tried")
    study.order(["b"])
    drawn = []
    for arm in study.each(("a", "b")):
        drawn.append((study.seed, arm, float(torch.rand(()))))
        study.keep(arm, study.seed + 0.5, "{:.1f} found")
    starts = [float(torch.rand((), generator=torch.Generator().manual_seed(n))) for n in (0, 1)]
    assert drawn == [(seed, arm, starts[seed]) for seed in (0, 1) for arm in ("a", "b")]
    assert list(study.numbers.items()) == [("b", [0.5, 1.5]), ("a", [0.5, 1.5])]
    assert messages[0] == "tried, seed 0: a 0.5 found"
    assert study.latest(".2f") == "b 1.50, a 1.50"
    # a batch for a test has numbers of its own in every seed
    own = study.fresh(lambda generator, rows: torch.rand(rows, generator=generator), 99, 2)
    assert own.tolist() == torch.rand(2, generator=torch.Generator().manual_seed(100)).tolist()


class Toy(torch.nn.Module):
    """Two weights, the second at four times the rate; counts what a trainer says."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor(3.0))
        self.second = torch.nn.Parameter(torch.tensor(-2.0))
        self.second.lr_scale = 4.0
        self.progress, self.ended = [], 0

    def forward(self, inputs, targets):
        loss = 9 * (inputs * self.first + self.second - targets).square().mean()
        return ModelOutput(inputs, loss, {}, None)

    def set_progress(self, done):
        self.progress.append(done)

    def end_step(self):
        self.ended += 1


def test_a_study_trains_by_clipped_adamw_with_warm_up_and_cosine():
    study = Study(StudySetting(seeds=4, scale=0.1, say=lambda text: None), "tried")
    *_, _seed = study.seeds()

    def batches(generator):
        inputs = torch.randn(8, generator=generator)
        return inputs, 2 * inputs

    model, expected, losses = Toy(), Toy(), []
    optimiser = torch.optim.AdamW(
        [{"params": [expected.first]}, {"params": [expected.second]}], weight_decay=0.2
    )
    generator = torch.Generator().manual_seed(1003)
    for step in range(40):
        rate = 0.1 * min(1, (step + 1) / 2) * (1 + math.cos(math.pi * step / 40)) / 2
        for group, scale in zip(optimiser.param_groups, (1, 4), strict=True):
            group["lr"] = scale * rate
        loss = expected(*batches(generator)).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    assert study.fit(model, batches, 400, lr=0.1, weight_decay=0.2) == pytest.approx(losses)
    assert model.progress == [step / 40 for step in range(40)]
    assert model.ended == 40
    assert not model.training


def test_a_rate_of_its_own_and_a_loss_of_its_own_take_the_place_of_the_usual_ones():
    study = Study(StudySetting(seeds=1, say=lambda text: None), "tried")
    next(study.seeds())
    model = Toy()
    seen = []

    def loss(part, inputs, targets):
        return part.first * inputs.sum() - part.first.detach() * (inputs.sum() - 1)

    def rate(step, steps):
        seen.append((step, steps))
        return 0.5 if step == 0 else 0.0

    ones = torch.ones(4)
    losses = study.fit(model, lambda _: (ones, ones), 3, lr=rate, weight_decay=0.0, loss_of=loss)
    # the first step of Adam goes by the rate
    assert losses == pytest.approx([3.0, 2.5, 2.5])
    assert seen == [(0, 3), (1, 3), (2, 3)]
    # that of lags rises and falls by equal amounts
    rates = [memories.falling(step, 40) for step in (0, 1, 2, 3, 39)]
    assert rates == pytest.approx([1e-3, 0.00195, 0.00285, 0.002775, 0.000075])


class Constant(torch.nn.Module):
    """One weight, whatever the inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, inputs, targets):
        return ModelOutput(inputs, self.weight.square(), {}, None)


def test_a_training_stands_beside_its_commonest_target_and_how_common_each_is():
    study = Study(StudySetting(seeds=2, say=lambda text: None), "tried")

    def four_symbols(generator):
        return torch.zeros(1, 5), torch.tensor([[0, 0, 3, 5, -100]])

    for _ in study.seeds():
        study.fit(Constant(), four_symbols, 3)
        study.fit(Constant(), lambda generator: (torch.zeros(2), torch.rand(2)), 2)
    beside = study.outcome(True, "").beside
    assert beside == {
        "always the commonest of four symbols, right": [0.5, 0.5],
        "counting four symbols, nats": pytest.approx([1.5 * math.log(2)] * 2),
    }


def test_a_training_on_data_stands_beside_counting_its_tokens():
    study = Study(StudySetting(seeds=1, scale=0.002, say=lambda text: None), "tried")
    data = load("lm", source="copy", length=6, symbols=4)
    how = {"width": 8, "layers": 1, "heads": 1}
    for _, _ in study.models({"attention": {}}, (data, 4), 1000, **how):
        pass
    assert study.beside[f"counting {data.name} (lm), nats"] == [data.counting]


def test_means_take_the_place_of_brackets_in_a_sentence():
    study = Study(StudySetting(seeds=2, say=lambda text: None), "tried")
    study.numbers = {"a, b: c": [1.0, 2.0], "n 1": [0.25, 0.25], "n 2": [0.5, 1.0]}
    outcome = study.outcome(True, "one [a, b: c|.2f], two [n 1|.0%] (in [0, 1])")
    assert outcome.sentence == "one 1.50, two 25% (in [0, 1])"
    assert study.series("n {}", (1, 2)) == [0.25, 0.75]
    assert study.curves("n {}", (1, 2)) == [[0.25, 0.5], [0.25, 1.0]]
    assert study.joined(".2f", "n {}", (2, 1)) == "2 0.75, 1 0.25"


def test_estimates_are_measured_against_attention_itself():
    """Many rows estimate the output, few do not; equal draws have equal errors."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 64, 16) / 4 for _ in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for kind in ("positive", "trigonometric"):
        errors = [
            relative_error(estimated(q, k, v, kind, "iid", rows), exact) for rows in (16, 4096)
        ]
        assert errors[1] < errors[0] / 50
        assert orthogonal_over_independent(kind, 0.5, 4000) < 1
    assert relative_error(exact, exact) == 0


def test_an_experiment_without_its_data_says_what_it_wants(tmp_path):
    (experiment,) = base.find("cifar-mixers")
    with pytest.raises(ConfigError, match=r"CIFAR-10.*--data"):
        base.perform(experiment, StudySetting(), tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'toeplitz'"):
        base.find("toeplits")


def test_diagonals_explain_a_toeplitz_matrix_and_not_noise():
    c = torch.randn(15)
    at = torch.arange(8)
    exact = c[7 + at[:, None] - at]
    assert toeplitz_share(exact) == pytest.approx(1, abs=1e-5)
    assert toeplitz_share(torch.randn(8, 8)) < 0.8
    assert diagonal_means(exact)[3] == pytest.approx(float(c[4]), abs=1e-5)


def test_the_five_gram_learns_a_repeated_text(tmp_path):
    source = tmp_path / "text.txt"
    source.write_text("the quick brown fox jumps over it. " * 400)
    data = load(source=str(source), length=64)
    assert ngram_bits(data, 40, seed=0) < 0.3


def test_gaps_are_scored_alike_for_every_model(tmp_path):

    source = tmp_path / "text.txt"
    source.write_text("abcdefgh" * 400)
    data = load("mlm", source=str(source), length=32)

    class Next(torch.nn.Module):
        """Knows the byte that ``places`` on from each byte stands in this text."""

        def __init__(self, places: int) -> None:
            super().__init__()
            self.places = places

        def forward(self, inputs):
            follows = (inputs - 97 + self.places) % 8 + 97
            return ModelOutput(20.0 * torch.nn.functional.one_hot(follows, 257), None, {}, None)

    found = measured(data, Next(0), Next(1), seed=0, windows=512)
    assert found["gpt"][0] == 1
    assert found["bert"][0] < 0.5
    assert found["unigram"][0] == pytest.approx(1 / 8, abs=0.05)
    assert found["unigram"][1] == pytest.approx(math.log(8), rel=0.05)
    for inputs, tokens, hidden in gaps(data, 512):
        assert (inputs[hidden] == data.mask_token).all()
        assert (tokens < 256).all()
        assert not hidden[:, 0].any()
