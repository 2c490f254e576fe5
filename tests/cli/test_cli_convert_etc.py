"""`convert --to etc`: a checkpoint of standard attention is made ready for longer texts."""

from pathlib import Path

import torch
from commands import Refused, Say
from foreign import checkpoint

import everyformer as ef


def test_bert_becomes_an_etc_for_longer_texts(say: Say, tree: Path) -> None:
    checkpoint("bert", tree / "theirs")
    code, out, err = say("convert", "theirs", "--to", "etc", "--length", "90", "--out", "ours")
    assert code == 0, err
    assert "everyformer train --from ours" in out
    ours = ef.load("ours")
    assert (ours.config.member, ours.config.max_length) == ("etc", 90)
    ids = torch.randint(3, ours.config.vocabulary, (2, 90))
    assert ours(ids).logits.shape == (2, 90, ours.config.vocabulary)


def test_a_model_made_longer_goes_on_with_the_task_that_it_has_learned(
    say: Say, tree: Path
) -> None:
    sizes = {"width": 8, "heads": 2, "layers": 1, "max_length": 16}
    ef.save(ef.create_model("bert", "mlm", vocabulary=257, **sizes), tree / "short")
    longer = ("--to", "longformer", "--length", "32", "--window", "4", "--out", "long")
    assert say("convert", "short", *longer)[0] == 0
    (tree / "text.txt").write_text("All of it is read. " * 50, encoding="utf-8")
    words = ("--data", "text.txt", "--length", "32", "--steps", "1", "--batch", "2", "--out", "run")
    code, _, err = say("train", "--from", "long", *words)
    assert code == 0, err
    assert ef.load("run").config.task == "mlm"


def test_what_is_no_encoder_and_a_length_of_others_are_refused(
    say: Say, refused: Refused, tree: Path
) -> None:
    checkpoint("gpt2", tree / "theirs")
    assert "task lm, causal" in refused("convert", "theirs", "--to", "etc", "--out", "ours")
    assert "--length is for" in refused("convert", "theirs", "--length", "9", "--out", "ours")
    assert not (tree / "ours").exists()
