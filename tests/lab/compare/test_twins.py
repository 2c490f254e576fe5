"""A member under two names: another draw of weights and dropout, on the same data in one order."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.cli.flags import FlagGroup, arrange
from everyformer.cli.verbs.compare import CompareOptions
from everyformer.core.errors import ConfigError, UnknownNameError
from everyformer.core.seeds import seed_of, twin
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.family import info
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.plan import own_options
from everyformer.lab.report.compare import described
from everyformer.lab.show.style import Styles, looks_of_family
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.spec import RunSpec, build_run, preset

PAIR = ("attention", "attention@again")


def run_of(member: str, **block: Any) -> RunSpec:
    sizes = {"width": 16, "layers": 1, "heads": 2, **block}
    return preset(member, "lm", **sizes)


@pytest.fixture(scope="module")
def data() -> Any:
    return load_dataset(DataConfig(source="copy", length=16), "lm")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("attention", ("attention", "")),
        ("attention@again", ("attention", "again")),
        ("aft-conv@b_2-c", ("aft-conv", "b_2-c")),
        ("attention@", ("attention@", "")),
        ("attention@a.window=3", ("attention@a.window=3", "")),
        ("a@b@c", ("a@b@c", "")),
    ],
)
def test_a_twin_is_a_name_and_a_word(name: str, parts: tuple[str, str]) -> None:
    assert twin(name) == parts
    one, other = vars(info("attention")), vars(info("attention@again"))
    assert other == one | {"name": "attention@again"}


@pytest.mark.parametrize(
    ("members", "error", "said"),
    [
        (("attentio@again",), UnknownNameError, "unknown member 'attentio'; did you mean 'atten"),
        (("attention@",), ConfigError, "one word of letters, digits, _ and - behind @"),
        (("attention@a b",), ConfigError, "attention@again"),
        (("attention@a", "attention@a"), ConfigError, "members named twice: attention@a"),
    ],
)
def test_a_name_that_is_none_is_refused(members: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        [info(name) for name in described(members).members]
    with pytest.raises(ConfigError, match="with a member that is compared"):
        own_options(CompareConfig(members=PAIR, options=("attention@other.window=3",)))


def test_every_label_and_every_seed_has_numbers_of_its_own() -> None:
    """And no label has those of the seed, so that members are what they were."""
    assert [seed_of(seed, "attention") for seed in (0, 7)] == [0, 7]
    names = ("attention@a", "attention@b", "attention@c")
    seeds = [seed_of(seed, name) for seed in range(50) for name in names]
    assert len({*seeds, *range(50)}) == 200
    assert seed_of(3, "gmlp@a") == seed_of(3, "attention@a") < 2**63


def test_twins_begin_with_other_weights(data: Any) -> None:
    one, same, other = (
        torch.cat([p.flatten() for p in build_run(run_of(name), data).parameters()])
        for name in ("attention", "attention", "attention@again")
    )
    assert torch.equal(one, same)
    assert one.shape == other.shape
    assert (one == other).float().mean() < 0.2


@pytest.mark.parametrize(("dropout", "equal"), [(0.0, True), (0.5, False)])
def test_twins_of_equal_weights_differ_by_what_is_dropped_alone(
    dropout: float, equal: bool, data: Any
) -> None:
    models = [build_run(run_of(name, dropout=dropout), data) for name in PAIR]
    models[1].load_state_dict(models[0].state_dict())
    config = TrainingConfig(steps=2, batch=4, evaluate_every=None, evaluate_sequences=8)
    losses = [train(m, data, config, show=False).evaluation for m in models]
    assert (losses[0] == losses[1]) is equal


def test_a_comparison_of_a_member_with_itself(
    compare: Callable[..., Any], launched: list[str], tree: Any
) -> None:
    words = ("--steps", "2", "--seeds", "2", "--options", "attention@again.window=3", *PAIR)
    done = compare(*words, "attention@third")
    assert done.code == 0, done.err
    assert [(run["member"], run["seed"]) for run in done.results["runs"]] == [
        (name, seed) for name in (*PAIR, "attention@third") for seed in (0, 1)
    ]
    values = {tuple(done.row(name)["values"]) for name in (*PAIR, "attention@third")}
    assert len(values) == 3
    assert [done.job(f"runs/{n}-seed0")["run"]["mixer"]["window"] for n in PAIR] == [None, 3]
    # alone it is the same as beside its member
    alone = compare("attention@third", "--steps", "2", out="alone").runs("attention@third")[0]
    assert alone["evaluation"] == done.runs("attention@third")[0]["evaluation"]
    assert {line["member"] for line in done.table()} == {*PAIR, "attention@third"}
    # what is one function is timed once, so that no speed is told apart
    one, third = done.row("attention"), done.row("attention@third")
    assert one["calibrated"] == third["calibrated"] != done.row("attention@again")["calibrated"]
    launched.clear()
    assert compare("--resume", small=False).code == 0
    assert launched == []
    shown = json.loads((tree / "made" / "runs" / "attention@third-seed1" / "job.json").read_text())
    assert shown["run"]["member"] == "attention@third"


def test_a_twin_stands_behind_a_flag_of_several_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--options", "attention@again.window=3", *PAIR]
    names = [*looks_of_family()]
    placed, rest = arrange(words, FlagGroup(CompareOptions()).flags(), names)
    assert (placed, rest) == ([*PAIR], words[:2])
    assert main(["compare", *words, "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["members"] == [*PAIR]


def test_twins_share_the_hue_of_their_family_and_differ_from_all() -> None:
    members = ["attention", "attention@a", "gpt", "attention@b", "gmlp", "gmlp@a"]
    styles = Styles(members)
    looks = [(styles[m].colour, styles[m].marker, styles[m].dashes) for m in members]
    assert len({*looks}) == len(members)
    family = {name: own for name, (own, _) in looks_of_family().items()}
    of = {name: styles[name].about.partition("-")[2] for name in members}
    assert all(of[name] == of[twin(name)[0]] for name in members)
    assert len(styles.families) == len({family[twin(name)[0]] for name in members})
    for name in ("attention", "gpt", "gmlp"):
        assert (styles[name].colour, styles[name].marker) == (
            looks_of_family()[name][1].colour,
            looks_of_family()[name][1].marker,
        )
