"""`everyformer generate RUN --prompt "..."`: continue a text, translate, or draw images."""

from __future__ import annotations

import codecs
import dataclasses
import io
import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO

import tyro

from everyformer.cli.exits import settle_exits
from everyformer.cli.parsing import TrainedOptions, say, verb
from everyformer.core.bounds import Count, Whole
from everyformer.core.config import part_of
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.generation.config import BeamConfig, Sampling
from everyformer.genes.retrieval import KnnOptions
from everyformer.lab.exits.options import ExitConfig
from everyformer.system.console import emit
from everyformer.system.files import expanded
from everyformer.system.plain import to_json

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun
    from everyformer.data.tokenizers.base import Tokenizer
    from everyformer.models.base import Model

TRIED = 4
"""tokens that are drawn to see how many threads are fastest"""


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(TrainedOptions, Sampling, BeamConfig):
    """The words of `everyformer generate`."""

    prompt: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """the text to continue (default: a line's end), or the sentence to translate; given several
    times, as many; - reads one from every line of stdin"""
    prompts: str | None = None
    """file with a prompt on every line"""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """end a text as soon as what was made holds this, \\n being a line's end; may be given several
    times"""
    store: str | None = None
    """folder of a datastore that the model reads (`everyformer index`; lm)"""
    knn: KnnOptions = field(default_factory=KnnOptions)
    """how it is read"""
    exits: ExitConfig = field(default_factory=ExitConfig)
    """where tokens leave (models with early exits)"""
    average: Count | None = None
    """take the mean of the weights in so many of the newest checkpoints (default: the best one)"""
    tokens: Whole | None = 200
    """how many tokens to make, none: until it is stopped (where a model's tables over positions end
    before the default, as many as fit)"""
    state: str | None = None
    """file that a text is kept in between two commands: what a stream came to is saved there, and
    gone on from if it exists (the prompt is then read after it)"""
    compile: bool = False
    """compile the step of one token: seconds at first, kept on disk for later commands (lm)"""
    weights: Literal["int8"] | None = None
    """int8 compiles it with weights in 8 bits, which are read faster, and says what they cost in
    bits a byte (lm in float32 on a CPU, one prompt; default: the run's own)"""
    images: Count | None = None
    """how many images to draw (default: 16), complete or enlarge (default: 6)"""
    complete: str | None = None
    """a picture, or a folder or zip of them, to draw the second half of: held-out takes those that
    the run was not trained on (pixels)"""
    enlarge: str | None = None
    """the same, to enlarge: small pictures, or large ones that are made small first
    (super-resolution; default: held-out)"""
    draws: Count = 2
    """how often each picture is completed or enlarged"""
    class_name: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """the class of the images, where the run was trained with --data.labels; may be given several
    times (default: all in turn)"""
    out: str | None = None
    """the picture to write, of images (default: RUN/samples.png, RUN/completed.png or
    RUN/enlarged.png)"""
    json: bool = False
    """machine output, once all is made"""

    @property
    def sampling(self) -> Sampling:
        """The part that drawing tokens takes."""
        stop = tuple(_with_lines(text) for text in self.stop)
        return dataclasses.replace(part_of(Sampling, self), stop=stop)

    def texts(self) -> list[str]:
        """All prompts, in order."""
        if self.prompts is None:
            if self.prompt == ("-",):
                return _lines(sys.stdin.buffer.read(), "stdin")
            return list(self.prompt) or ["\n"]
        if self.prompt:
            raise ConfigError("--prompt and --prompts are both given: leave one of them out")
        try:
            return _lines(expanded(self.prompts).read_bytes(), self.prompts)
        except OSError as error:
            raise ConfigError(
                f"cannot read the prompts {self.prompts}: {error.strerror}"
            ) from error


def _lines(raw: bytes, where: str) -> list[str]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8 text ({error.reason}); convert it first"
        ) from error
    return text.removesuffix("\n").split("\n")


def _with_lines(text: str) -> str:
    r"""``text`` with \n, \t and \\ as a shell leaves them turned into what they stand for."""
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], "\\"), text)


@verb(
    GenerateOptions,
    about="Continue a prompt or translate it with a trained model, or draw its images.",
    examples=(
        "everyformer generate runs/aft-local --prompt 'def main' --tokens 300",
        "everyformer generate runs/aft-local --temperature 0.7 --top-p 0.9 --stop '\\n\\n'",
    ),
)
def run(options: GenerateOptions) -> int:
    """Write the continuation to stdout as it is made."""
    from everyformer.cli.trained import open_run

    trained = open_run(options.run, options.device)
    if options.weights is not None and not trained.does.continues:
        raise UnsupportedError(
            f"--weights {options.weights} is for runs that continue a text, and this one has the "
            f"task {trained.task}: leave it out"
        )
    if trained.does.translates:
        _refuse_images(trained, options)
        return _translations(trained, options)
    if options.search != BeamConfig():
        raise ConfigError(
            f"beam search is for seq2seq runs, not {trained.task}: leave its options out"
        )
    if trained.does.draws:
        return _images(trained, options)
    _refuse_images(trained, options)
    if trained.does.continues:
        return _text(trained, options)
    raise UnsupportedError(
        f"the {'model' if trained.saved else 'run'} in {options.run} has the task {trained.task}: "
        "only lm, seq2seq, pixels and super-resolution runs generate"
    )


def _text(trained: TrainedRun, options: GenerateOptions) -> int:
    """Continue the prompts; one is written as its tokens are drawn."""
    tokenizer, texts = trained.text_tokenizer(), options.texts()
    for number, text in enumerate(texts, 1):
        if not text:
            which = "the prompt" if len(texts) == 1 else f"prompt {number} of {len(texts)}"
            raise ConfigError(f"{which} is empty: give at least one character")
    from everyformer.data.text import encode_prompt
    from everyformer.generation.sampling import initial_state
    from everyformer.generation.state_file import load_state

    model = trained.reading(options.average, options.store, options.knn)
    length = math.inf if options.tokens is None else options.tokens
    likeliest = options.sampling.temperature == 0
    settle_exits(trained, model, options.exits, tokens=length, likeliest=likeliest)
    exact = initial_state(model, 1) is not None
    if options.json and options.tokens is None:
        raise ConfigError("--json gives one document when all is made: say how many --tokens")
    rules: dict[str, Any] = {"sampling": options.sampling, "tokenizer": tokenizer}
    rules |= {"compile": options.compile, "weights": options.weights}
    last, num_tokens = [], 0
    if options.state is not None:
        if not exact or len(texts) > 1:
            raise ConfigError(
                "--state keeps one text of a member with an exact state: leave it out"
                + (", or give one prompt" if exact else "")
            )
        if expanded(options.state).exists():
            state, token = load_state(options.state, model)
            rules["state"], last, num_tokens = state, token.tolist(), int(state.num_tokens.max())
            texts = texts if options.prompts or options.prompt else [""]
    ids = [encode_prompt(tokenizer, text)[0].tolist() if text else [] for text in texts]
    ids[0] = [*last, *ids[0]]
    rules["tokens"] = tokens = _fitting(model, options.tokens, max(map(len, ids)), num_tokens)
    kind = "a state" if exact else "recomputing (the member has no exact state)"
    say(f"{'endless' if tokens is None else tokens} tokens with {kind}")
    _choose_threads(model, ids, rules)
    if len(texts) > 1:
        made = _side_by_side(model, texts, ids, options, rules)
    else:
        made = [_as_it_is_made(model, texts[0], ids[0], options, rules)]
    if options.json:
        emit({"run": options.run, "texts": made})
    if options.weights is not None:
        from everyformer.cli.weights import say_cost

        say_cost(trained, model)
    return 0


def _choose_threads(model: Model, ids: list[list[int]], rules: dict[str, Any]) -> None:
    """By a few first tokens, where there are many more."""
    from everyformer.cli.threads import choose_threads
    from everyformer.generation.sampling import stream

    if rules["tokens"] is None or rules["tokens"] > 8 * TRIED:
        few = rules | {"tokens": TRIED, "compile": False, "weights": None, "state": None}
        choose_threads(lambda: list(stream(model, ids, **few)))


def _side_by_side(
    model: Model, texts: list[str], ids: list[list[int]], options: GenerateOptions,
    rules: dict[str, Any],
) -> list[dict[str, str]]:  # fmt: skip
    """Continuations of several prompts, a line of JSON each unless all are one document."""
    import torch

    from everyformer.cli.account import say_written
    from everyformer.generation.sampling import ENDED, stream

    if rules["tokens"] is None:
        raise ConfigError("several prompts are continued by a number of --tokens, not endlessly")
    made = []
    drawn = stream(model, ids, **rules)
    rows = torch.stack([*drawn] or [torch.empty(len(ids), 0)], -1).tolist()
    say_written(drawn, max(map(len, ids)) + rules["tokens"])
    for text, before, row in zip(texts, ids, rows, strict=True):
        visible = [token for token in row if token not in (ENDED, options.end_token)]
        after = rules["tokenizer"].decode_after(before, visible)
        made.append({"prompt": text, "text": after})
    for one in made if not options.json else []:
        print(to_json(one, ensure_ascii=False))
    return made


def _as_it_is_made(
    model: Model, text: str, ids: list[int], options: GenerateOptions, rules: dict[str, Any]
) -> dict[str, str]:
    """The continuation of one prompt, on stdout token by token unless it is a document's."""
    from everyformer.cli.account import say_written
    from everyformer.generation.sampling import ENDED, stream
    from everyformer.generation.state_file import save_state
    from everyformer.system.signals import GracefulStop

    whole = io.StringIO()
    if not options.json:
        print(text, end="", flush=True)
    write = _writer(rules["tokenizer"], ids, whole if options.json else None)
    drawn = stream(model, [ids], **rules)
    count, token = 0, None
    # an endless text ends by a signal, and one that is kept is kept then too
    watched = rules["tokens"] is None or options.state is not None
    try:
        with GracefulStop("stopping after this token") if watched else nullcontext() as stop:
            for token in drawn:
                count += 1
                if int(token) not in (ENDED, options.end_token):
                    write(int(token), False)
                if stop is not None and stop.received is not None:
                    break
        write(None, True)
    finally:
        if not options.json:
            print(flush=True)
    if drawn.state is not None:
        say(f"{count:,} tokens; the state holds {drawn.state.nbytes:,} bytes")
        say_written(drawn, len(ids) + count)
        if options.state is not None and token is not None:
            save_state(options.state, drawn.state, token)
    return {"prompt": text, "text": whole.getvalue()}


def _fitting(model: Model, tokens: int | None, prompt: int, num_tokens: int) -> int | None:
    """``tokens``, or of the default as many as fit behind the prompt and ``num_tokens`` before it.

    Raises:
        ConfigError: more are requested than the model's tables over positions have places.
    """
    if model.longest is None:
        return tokens
    # the last token that is drawn is not read
    fits = model.longest - num_tokens - prompt + 1
    both = num_tokens + prompt
    before = f"{both:,} tokens come before" if num_tokens else f"the prompt has {prompt:,}"
    ends = f"{model.config.member} has tables over {model.longest:,} positions, and {before}"
    if fits < 1:
        raise ConfigError(f"{ends}, so nothing can follow: give a shorter prompt")
    if tokens is not None and tokens <= fits:
        return tokens
    if tokens == GenerateOptions.tokens:
        say(f"{ends}: {fits:,} tokens are made")
        return fits
    endless = "endless text" if tokens is None else f"--tokens {tokens}"
    raise ConfigError(
        f"{ends}, so {endless} does not fit: give --tokens {fits} or fewer, or train a "
        "model without such tables (`everyformer train attention --position rope`), or a "
        "longer one (--length)"
    )


def _translations(trained: TrainedRun, options: GenerateOptions) -> int:
    """Print the translation of the prompt, or of each line of stdin; an empty line stays one."""
    if options.sampling != Sampling() or options.tokens != GenerateOptions.tokens:
        raise ConfigError(
            "a translation is searched, not drawn: leave out --tokens (--extra limits its length) "
            "and the options of sampling"
        )
    tokenizer, lines = trained.text_tokenizer(), options.texts()
    if not any(line.strip() for line in lines):
        raise ConfigError("there is nothing to translate: give --prompt TEXT, or - and lines")
    from everyformer.data.parallel import encode_source
    from everyformer.generation.beam import translate_all

    filled = [number for number, line in enumerate(lines) if line.strip()]
    sources = [encode_source(tokenizer, lines[number]) for number in filled]
    model = trained.model(options.average)
    settle_exits(trained, model, options.exits)
    if len(sources) > 2 * TRIED:
        from everyformer.cli.threads import choose_threads

        choose_threads(lambda: translate_all(model, tokenizer, sources[:1], options.search))
    translations = translate_all(model, tokenizer, sources, options.search)
    by_line = dict(zip(filled, translations, strict=True))
    if options.json:
        rows = [{"source": line, "text": by_line.get(n, "")} for n, line in enumerate(lines)]
        emit({"run": options.run, "translations": rows})
        return 0
    for number in range(len(lines)):
        print(by_line.get(number, ""))
    return 0


def _writer(
    tokenizer: Tokenizer, before: Sequence[int] = (), out: TextIO | None = None
) -> Callable[[int | None, bool], None]:
    """Writes the text of each token ``before`` others as soon as its characters are whole.

    Args:
        out: what it is written to (default: stdout).
    """
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    # of long texts only what later ones depend on is decoded again
    context, tokens = tokenizer.context(before), list[int]()

    def write(token: int | None, last: bool) -> None:
        nonlocal context
        new = [] if token is None else [token]
        if tokenizer.kind == "bytes":
            (out or sys.stdout).write(utf8.decode(bytes(new), last))
        else:
            tokens.extend(new)
            text = tokenizer.decode_after(context, tokens)
            if not last and text.endswith("\ufffd"):
                return
            (out or sys.stdout).write(text)
            context = tokenizer.context([*context, *tokens])
            tokens.clear()
        (out or sys.stdout).flush()

    return write


def _images(trained: TrainedRun, options: GenerateOptions) -> int:
    """Draw, and say where the picture is."""
    from everyformer.cli.drawing import draw

    why = "is for texts, but the run draws images: leave it out (--images sets how many)"
    _refuse(options, ("prompt", "prompts", "tokens", "state"), why)
    picture = draw(trained, options)
    if options.json:
        emit({"run": options.run, "picture": str(picture)})
    else:
        print(picture)
    return 0


def _refuse_images(trained: TrainedRun, options: GenerateOptions) -> None:
    why = "is for runs that draw images, and this one has the task"
    names = ("images", "complete", "enlarge", "draws", "class_name", "out")
    _refuse(options, names, f"{why} {trained.task}: leave it out")


def _refuse(options: GenerateOptions, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(options, name) != getattr(GenerateOptions, name):
            raise ConfigError(f"--{name.removesuffix('_name')} {why}")
