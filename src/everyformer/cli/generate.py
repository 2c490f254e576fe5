"""`everyformer generate RUN --prompt "..."`: continue a text, or draw images pixel by pixel."""

from __future__ import annotations

import codecs
import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from everyformer.cli.parsing import parse, say
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.generation.config import Sampling

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun
    from everyformer.data.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Sampling):
    run: tyro.conf.Positional[str]
    """directory of a trained run"""
    prompt: str = "\n"
    """the text to continue"""
    tokens: int = 200
    """how many tokens to make; of a pixel model, how many images"""
    out: str | None = None
    """of a pixel model: the picture to write (default: RUN/samples.png)"""

    @property
    def sampling(self) -> Sampling:
        """The part that generation itself takes."""
        return Sampling(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Sampling)})


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
    from everyformer.cli.trained import open_run

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
    from everyformer.generation.sampling import initial_state, stream

    model = trained.model()
    exact = initial_state(model, 1) is not None
    kind = "a state" if exact else "recomputing (the member has no exact state)"
    say(f"{options.tokens} tokens with {kind}")
    print(options.prompt, end="", flush=True)
    write = _writer(tokenizer)
    try:
        for token in stream(model, ids, tokens=options.tokens, sampling=options.sampling):
            write(int(token), False)
        write(None, True)
    finally:
        print(flush=True)
    return 0


def _writer(tokenizer: Tokenizer) -> Callable[[int | None, bool], None]:
    """Writes each token's text as soon as its characters are whole."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    made: list[int] = []
    shown = ""

    def write(token: int | None, last: bool) -> None:
        nonlocal shown
        new = [] if token is None else [token]
        if tokenizer.kind == "bytes":
            sys.stdout.write(utf8.decode(bytes(new), last))
        else:
            made.extend(new)
            text = tokenizer.decode(made)
            if not last and text.endswith("\ufffd"):
                return
            sys.stdout.write(text[len(shown) :])
            shown = text
        sys.stdout.flush()

    return write


def _images(trained: TrainedRun, options: GenerateOptions) -> int:
    from everyformer.generation.pixels import draw_images
    from everyformer.report.pictures import save_images

    out = Path(options.out) if options.out is not None else trained.path / "samples.png"
    images = draw_images(trained.model(), options.tokens, options.sampling)
    save_images(images, out)
    print(out)
    return 0
