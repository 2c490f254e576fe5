"""Writing and evaluating end with what ran, the time of a token and the share of its limit."""

import re

import pytest
from commands import Say, Train

from everyformer.cli import account
from everyformer.lab.bench import limits

LINE = r"ran .*: [\d.e-]+ ms a token, the limit [\d.e-]+ \(.*\), \d+%; most of the rest, .* ms: .*"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow memory, which is the limit, and nothing to measure."""
    monkeypatch.setattr(limits, "bandwidth", lambda device: 1e6)
    monkeypatch.setattr(limits, "products", lambda device: 1e12)


def last_line(said: str) -> str:
    line = said.splitlines()[-1]
    assert re.fullmatch(LINE, line), line
    return line


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("attention", ("--prompt", "a", "--tokens", "3")),
        ("attention", ("--prompt", "a", "--prompt", "ab", "--tokens", "3")),
        ("gpt", ("--prompt", "a")),  # as many as its table has places
        ("reformer", ("--prompt", "a", "--tokens", "3")),  # which recomputes
    ],
)
def test_a_text_ends_with_what_ran(trained: Train, say: Say, member: str, words: tuple) -> None:
    run = trained(member)
    code, _, err = say("generate", str(run), *words)
    assert code == 0
    assert "MB at 0.001 GB/s" in last_line(err)


def test_a_text_that_ended_is_told_of_too(trained: Train, say: Say) -> None:
    """By a text of one row, since none is left."""
    run = trained("attention")
    words = ("--prompt", "a", "--top-k", "1")
    _, out, _ = say("generate", str(run), *words, "--tokens", "3")
    code, again, err = say("generate", str(run), *words, "--stop", out[1:4])
    assert (code, again) == (0, out)
    last_line(err)


def test_an_evaluation_ends_with_what_ran(trained: Train, say: Say) -> None:
    run = str(trained("attention"))
    for more in ((), ("--mode", "sliding")):
        code, _, err = say("eval", run, "--sequences", "3", *more)
        assert code == 0
        last_line(err)


def test_what_is_counted_are_bytes_of_a_token(trained: Train, say: Say, monkeypatch) -> None:
    told = []
    monkeypatch.setattr(account, "account", lambda step, seconds, **more: told.append(more) or "x")
    say("generate", str(trained("attention")), "--prompt", "a", "--tokens", "4")
    assert told == [
        {"outside": told[0]["outside"], "compiled": False, "spared": 0, "device": "cpu"}
    ]
    assert told[0]["outside"] > 0
