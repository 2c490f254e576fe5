"""Depth `repeat`: the model, and its way through flags, files, runs and comparisons."""

from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.cli import main

SIZES = [
    "--width",
    "16",
    "--heads",
    "2",
    "--layers",
    "1",
    "--length",
    "32",
    "--batch",
    "2",
    "--training.threads",
    "1",
]
RUN = [*SIZES, "--training.checkpoint-every", "none", "--training.evaluate-every", "none"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("wiring", ["pre", "post", "reversible"])
def test_one_block_three_times_is_three_layers_of_equal_weights(wiring: str) -> None:
    own = {"reversible_output": "mean"} if wiring == "reversible" else {}
    sizes = {"width": 16, "heads": 2, "vocabulary": 11, "wiring": wiring, **own}
    once = ef.create_model("alibi", layers=1, depth="repeat", times=3, **sizes).double()
    deep = ef.create_model("alibi", layers=3, **sizes).double()
    held = once.state_dict()
    shared = {f"stack.blocks.{n}{k[14:]}": w for k, w in held.items() for n in range(3)
              if k.startswith("stack.blocks.0")}  # fmt: skip
    deep.load_state_dict({**{k: w for k, w in held.items() if ".blocks." not in k}, **shared})
    tokens = torch.randint(0, 11, (2, 13))
    for task in (once, deep):
        task(tokens, targets=tokens).loss.backward()
    torch.testing.assert_close(once(tokens).logits, deep(tokens).logits, rtol=0, atol=1e-12)
    weight = once.stack.blocks[0].mixer.out.weight
    summed = sum(block.mixer.out.weight.grad for block in deep.stack.blocks)
    torch.testing.assert_close(weight.grad, summed, rtol=0, atol=1e-12)


@pytest.mark.full("seconds each", parts=3)
def test_it_goes_through_flags_files_saved_models_and_resume(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = ["train", "attention", *RUN, "--depth", "repeat", "--depth.times", "3"]
    assert main([*whole, "--steps", "4", "--training.schedule", "constant", "--out", "four"]) == 0
    capsys.readouterr()
    assert main([*whole, "--print-config"]) == 0
    Path("run.json").write_text(capsys.readouterr().out)
    file = ["train", "--config", "run.json", "--training.schedule", "constant", "--out", "two"]
    assert main([*file, "--steps", "2"]) == 0
    assert main(["train", "--resume", "--out", "two", "--steps", "4"]) == 0
    model = ef.load("two")
    assert model.config.genes["depth"].name == "repeat"
    assert model.config.genes["depth"].get("times") == 3
    assert len(model.stack.blocks) == 1
    assert len(model.init_state(1).layers) == 3
    for name, weight in ef.load("four").state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    ef.save(model, "saved")
    tokens = torch.randint(0, 200, (1, 9))
    assert torch.equal(ef.load("saved")(tokens).logits, model.eval()(tokens).logits)


def test_a_depth_is_needed_and_its_options_are_held_to_their_bounds() -> None:
    with pytest.raises(ef.EveryformerError, match="needs a depth"):
        ef.create_model("attention", depth=None)
    with pytest.raises(ef.EveryformerError, match="times' must be at least 1"):
        ef.create_model("attention", depth="repeat", times=0)
