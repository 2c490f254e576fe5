"""Writes what a commit's own code saves; run by that code, in the folder of the commit (README)."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

import everyformer as ef
from everyformer.cli import main
from everyformer.models.build import by_head

SIZES = ("--model.width", "8", "--model.layers", "1", "--model.heads", "2")
FURTHER = [3, 1, 4, 1, 5]
RHYTHM = ("--training.batch", "2", "--training.device", "cpu", "--training.threads", "1")


def example(config: Any) -> torch.Tensor:
    """Two texts or pictures of small numbers that follow from their places alone."""
    shape = config.image if config.image is not None else (config.max_length - 5,)
    count = torch.Size(shape).numel()
    most = 256 if config.image is not None else config.vocabulary - 1
    numbers = (torch.arange(2 * count) * 37 % most).view(2, *shape)
    return numbers if config.image is None else numbers.to(torch.uint8)


def saved(name: str, member: str, task: str, std: float = 0.3, **options: Any) -> None:
    """A model by itself, and its outputs."""
    torch.manual_seed(0)
    model = ef.create_model(member, task, width=8, layers=1, heads=2, **options).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=std)
    ef.save(model, name)
    told(name, model)


def streamed(name: str, member: str, **options: Any) -> None:
    """A model, the state of its text after 17 tokens, the 13 that it went on with, and what it
    gives for `FURTHER` instead."""
    from everyformer.generation.config import Sampling
    from everyformer.generation.sampling import stream
    from everyformer.generation.state_file import save_state

    saved(name, member, "lm", std=1.0, vocabulary=11, max_length=32, **options)
    model, likeliest = ef.load(name), Sampling(temperature=0)
    first = stream(model, [1, 2, 3], tokens=17, sampling=likeliest)
    last = list(first)[-1]
    assert first.state is not None
    save_state(Path(name, "text.state"), first.state, last)
    rest = stream(model, last, tokens=13, sampling=likeliest, state=first.state)
    more = {"then": [int(token) for token in rest]}
    with torch.no_grad():
        further = model(torch.tensor([FURTHER]), state=first.state).logits
    told(name, model, more | {"further": [round(x, 6) for x in further.flatten().tolist()]})


def trained(name: str, member: str, *words: str) -> None:
    """A run of two steps, the outputs and the loss of its model, and the loss of one of four."""
    run = ("train", member, *SIZES, *RHYTHM, *words, "--training.checkpoint-every", "none",
           "--training.evaluate-every", "none", "--training.log-every", "1")  # fmt: skip
    losses = []
    for steps in ("4", "2"):
        sys.argv = ["everyformer", *run, "--training.steps", steps, "--out", name]
        assert main(sys.argv[1:]) == 0
        state = Path(name, "checkpoints", f"step-0000000{steps}", "state.json")
        losses.append(json.loads(state.read_text())["evaluation"]["loss"])
        if steps == "4":
            shutil.rmtree(name)
    Path(name, "environment.json").unlink()
    Path(name, ".lock").unlink(missing_ok=True)
    shutil.rmtree(Path(name, "tensorboard"), ignore_errors=True)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["eval", name, "--json"]) == 0
    loss = json.loads(said.getvalue())["evaluation"]["loss"]
    told(name, ef.load(name), {"loss": loss, "loss of four steps": losses[0]})


def compared(name: str, *words: str) -> None:
    """A comparison of two members for two steps each, and the losses of both for four."""
    run = ("compare", "attention", "rope", *SIZES, *RHYTHM, *words, "--options", "rope.base=100",
           "attention.kv-heads=1", "--bench-lengths", "8", "--training.checkpoint-every", "none",
           "--training.evaluate-every", "none", "--training.log-every", "1")  # fmt: skip
    for steps in ("4", "2"):
        shutil.rmtree(name, ignore_errors=True)
        assert main([*run, "--training.steps", steps, "--out", name]) == 0
        rows = json.loads(Path(name, "results.json").read_text())["rows"]
        losses = {row["member"]: row["quality"] for row in rows}
        if steps == "4":
            four = losses
    for path in (*Path(name).rglob("environment.json"), *Path(name).rglob(".lock"),
                 Path(name, "report.html"), Path(name, "results.csv"),
                 Path(name, "results.json")):  # fmt: skip
        path.unlink(missing_ok=True)
    for path in [Path(name, "figures"), *Path(name).rglob("tensorboard")]:
        shutil.rmtree(path)
    text = json.dumps({"two steps": losses, "four steps": four})
    Path(f"{name}.json").write_text(text + "\n")


def told(name: str, model: Any, more: dict[str, Any] | None = None) -> None:
    """``NAME.json``: the outputs for `example`, and what else there is to know."""
    with torch.no_grad():
        logits = model(example(model.config)).logits
    # enough to tell them from others
    shown = logits.flatten()[:: max(1, logits.numel() // 64)].tolist()
    values = {"logits": [round(x, 6) for x in shown], **(more or {})}
    Path(f"{name}.json").write_text(json.dumps(values) + "\n")


def text() -> tuple[str, ...]:
    lines = (f"{n} and {n * n} are {n + n * n}.\n" for n in range(150))
    Path("text.txt").write_text("".join(lines))
    return ("--data", "text.txt", "--tokenizer", "chars", "--data.length", "32")


if __name__ == "__main__":
    even = ("--training.schedule", "constant", "--training.warmup", "0")
    if sys.argv[1] == "652fd9f":
        saved("pixels", "attention", "pixels", image=(3, 4, 4))
        trained("pixels-run", "attention", "--data", "digits", "--task", "pixels", *even,
                "--training.ema", "0.5")  # fmt: skip
    elif sys.argv[1] == "bf02051":
        trained("rope-run", "rope", *text(), *even)
        saved("alibi", "alibi", "lm", max_length=20, vocabulary=11)
    elif sys.argv[1] == "1363f7a":
        data = text()
        trained("xl-run", "transformer-xl", *data, *even, "--memory.slots", "8",
                "--place.distances", "learned", "--place.reach", "6")  # fmt: skip
        trained("t5-run", "attention", *data, *even, "--position", "t5-relative",
                "--place.buckets", "8", "--mixer.kv-heads", "1")  # fmt: skip
        trained("reversible-run", "reformer", *data, *even, "--model.layers", "2",
                "--model.block.reversible-output", "mean", "--mixer.chunk", "8",
                "--mixer.rounds", "2")  # fmt: skip
        trained("heads-run", "linear", *data, *even, "--by-head", "linear,attention",
                "--mixer.feature-map", "relu")  # fmt: skip
        trained("bert-run", "bert", *data, *even, "--task", "mlm")
        saved(
            "heads",
            "attention",
            "lm",
            max_length=20,
            vocabulary=11,
            mixer=by_head(
                "attention", "aft-local", attention={"bias": ("query",)}, aft_local={"window": 3}
            ),
        )
        saved("compressive", "compressive", "lm", max_length=20, vocabulary=11, slots=4,
              compressed=3, rate=2, function="dilated", clamp=5)  # fmt: skip
        saved("gelu", "attention", "mlm", max_length=20, vocabulary=11, position="shaw", clip=3,
              wiring="post", feedforward="swiglu", norm="rmsnorm")  # fmt: skip
        compared("comparison", *data, *even)
    elif sys.argv[1] == "cfe6dd7":
        for member in ("attention", "gmlp", "aft-simple", "linear", "transformer-xl"):
            streamed(f"{member}-text", member)
        streamed("compressive-text", "compressive", slots=4, compressed=3, rate=2)
    else:
        streamed("reformer-text", "reformer", chunk=4)
        streamed("routing-text", "routing", clusters=2, window=4)
        streamed("sinkhorn-text", "sinkhorn", block_size=4)
        streamed("longformer-text", "longformer", window=4)
        sparse = {"block_size": 2, "random_blocks": 1}
        saved("bigbird", "bigbird", "mlm", max_length=80, vocabulary=101, **sparse)
        saved("image-transformer", "image-transformer", "pixels", image=(3, 4, 4), block_size=8,
              tile=(2, 2))  # fmt: skip
        data = text()
        idle = ("--training.schedule", "noam", "--training.min-lr-ratio", "0.2")
        trained("attention-run", "attention", *data, *idle, "--training.warmup-steps", "1",
                "--training.ema", "0.5")  # fmt: skip
        trained("routing-run", "routing", *data, *even)
        trained("compressive-run", "compressive", *data, *even)
        trained("layers-run", "sparse-transformer", *data, *even, "--model.layers", "2",
                "--mixer.stride", "4", "--mixer.columns", "2",
                "--schedule", "pattern=strided,fixed", "inclusive=true,true")  # fmt: skip
        trained("bigbird-run", "bigbird", *data, *even, "--task", "mlm", "--mixer.block-size", "1",
                "--mixer.random-blocks", "1")  # fmt: skip
