"""The words of `everyformer generate`."""

import dataclasses
import re
import sys
from dataclasses import dataclass, field

import tyro

from everyformer.cli.parsing import TrainedOptions
from everyformer.core.bounds import Count, Whole
from everyformer.core.config import part_of
from everyformer.core.errors import ConfigError
from everyformer.generation.config import BeamConfig, Sampling
from everyformer.genes.retrieval import KnnOptions
from everyformer.lab.exits.options import ExitConfig
from everyformer.system.files import expanded


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
