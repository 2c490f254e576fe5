"""`everyformer generate RUN --prompt "..."`: continue a text, or draw images pixel by pixel."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from everyformer.cli.parsing import parse, say
from everyformer.cli.trained import TrainedRun, open_run
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.generation.pixels import draw_images
from everyformer.generation.sampling import Sampling, initial_state, stream


@dataclass(frozen=True)
class GenerateOptions:
    run: tyro.conf.Positional[str]
    """directory of a trained run"""
    prompt: str = "\n"
    """the text to continue"""
    tokens: int = 200
    """how many tokens to make; of a pixel model, how many images"""
    sampling: tyro.conf.OmitArgPrefixes[Sampling] = field(default_factory=Sampling)
    out: str | None = None
    """of a pixel model: the picture to write (default: RUN/samples.png)"""


def run(words: Sequence[str]) -> int:
    """Write the continuation to stdout as it is made."""
    options = parse(
        GenerateOptions,
        words,
        verb="generate",
        about="Continue a prompt with a trained language model, or draw images with a pixel model.",
        examples=(
            "everyformer generate runs/aft-local --prompt 'def main' --tokens 300",
            "everyformer generate runs/aft-local --temperature 0.7 --top-p 0.9 --seed 1",
        ),
    )
    if options.tokens < 0:
        raise ConfigError(f"tokens must be 0 or more, not {options.tokens}")
    trained = open_run(options.run)
    if trained.task == "lm":
        return _text(trained, options)
    if trained.task == "pixels":
        return _images(trained, options)
    raise UnsupportedError(
        f"the run in {options.run} has the task {trained.task}: only lm and pixels runs generate"
    )


def _text(trained: TrainedRun, options: GenerateOptions) -> int:
    tokenizer = trained.tokenizer()
    if tokenizer is None:
        raise UnsupportedError(
            f"the run in {options.run} learned a generated task without text: nothing to print"
        )
    ids = tokenizer.encode(options.prompt)
    if not ids:
        raise ConfigError("the prompt is empty: give at least one character")
    model = trained.model()
    state = initial_state(model, 1)
    kind = "a state" if state is not None else "recomputing (the member has no exact state)"
    say(f"{options.tokens} tokens with {kind}")
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    print(options.prompt, end="", flush=True)
    made: list[int] = []
    shown = ""
    for token in stream(model, ids, tokens=options.tokens, sampling=options.sampling):
        made.append(int(token))
        if tokenizer.kind == "bytes":
            sys.stdout.write(utf8.decode(bytes(made[-1:])))
        else:
            text = tokenizer.decode(made)
            sys.stdout.write(text[len(shown) :])
            shown = text
        sys.stdout.flush()
    print()
    return 0


def _images(trained: TrainedRun, options: GenerateOptions) -> int:
    from everyformer.report.pictures import save_images

    out = Path(options.out) if options.out is not None else trained.path / "samples.png"
    images = draw_images(trained.model(), options.tokens, options.sampling)
    save_images(images, out)
    print(out)
    return 0
