"""`everyformer train NAME --data ...`: one member on your data, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everyformer.cli.parsing import SHORT, parse, peek, say
from everyformer.cli.run_options import RunConfig, model_config, preset, read_run, run_folder
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError

EXAMPLES = (
    "everyformer train aft-local --data mytext.txt --steps 2000",
    "everyformer train gmlp --data digits --budget-seconds 60 --model.width 64",
)


def run(words: Sequence[str]) -> int:
    """Train, and say where the results are."""
    words = _resumed(list(words))
    options = read_run(words, "train", "Train a member on your data.", EXAMPLES)
    folder = run_folder(options)
    if options.resume and (folder / "config.json").exists():
        options = _saved(options, words)

    import torch

    from everyformer.data import load_dataset
    from everyformer.models.build import build_model
    from everyformer.training import RunDirectory, train

    dataset = load_dataset(options.data, options.task)
    config = model_config(options, dataset)
    torch.manual_seed(options.training.seed)
    model = build_model(config)
    count = sum(p.numel() for p in model.parameters())
    say(f"{options.member}: {count:,} parameters, task {dataset.task}; {dataset.split}")
    with RunDirectory(folder, resume=options.resume) as directory:
        result = train(
            model,
            dataset,
            options.training,
            directory,
            resume=options.resume,
            extra_config={"run": to_dict(options)},
        )
    if not result.interrupted:
        print(f"run         {folder}")
        for name, value in (result.evaluation or {}).items():
            if isinstance(value, int | float):
                print(f"{name:<12}{value:.6g}")
        speed, used = result.tokens_per_second, result.seconds
        print(f"trained     {result.steps} steps, {used:.1f} s, {speed:,.0f} tokens/s")
        if dataset.task == "lm":
            print(f"next        everyformer generate {folder} --prompt '...'")
    return result.exit_code


def _resumed(words: list[str]) -> list[str]:
    """With --resume the member need not be named again: the run knows it."""
    if "--resume" not in words or (words and not words[0].startswith("-")):
        return words
    out = peek(words, "--out")
    if out is None:
        return words
    return [str(_saved_values(out)["member"]), *words]


def _saved(options: RunConfig, words: Sequence[str]) -> RunConfig:
    """The run's own options, with what this command line says on top."""
    values = _saved_values(str(run_folder(options)))
    default = preset(values["member"], values["model"]["position"])
    held: Any = from_dict(type(default), values, "", default)
    return parse(
        type(default),
        words,
        verb="train",
        about="Train a member on your data.",
        examples=EXAMPLES,
        default=held,
        short=SHORT,
    )


def _saved_values(out: str) -> dict[str, Any]:
    from everyformer.training.run import RUN_FORMAT
    from everyformer.training.storage import read_json

    values = read_json(Path(out) / "config.json", RUN_FORMAT).get("run")
    if not isinstance(values, dict):
        raise CheckpointError(f"{out} was not made by `everyformer train`: name the member again")
    return values
