"""`TASKS`: jobs of a model, one record each.

A task is its record everywhere: callers read these fields, never its
name. A new one is a record here, a model, and data that serves it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

LM, MLM, TEXT, IMAGE = "lm", "mlm", "classify-text", "classify-image"
SEQ2SEQ, PIXELS, ENLARGE = "seq2seq", "pixels", "super-resolution"
SERIES, TEXT_NUMBER = "classify-series", "regress-text"
IMAGE_NUMBER, SERIES_NUMBER = "regress-image", "regress-series"
DECISION = "decision"
TaskName = Literal[
    "lm", "mlm", "classify-text", "classify-image", "seq2seq", "pixels", "super-resolution",
    "classify-series", "regress-text", "regress-image", "regress-series", "decision",
]  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    about: str
    """what goes in, and what comes out"""
    reads: Literal[
        "text", "labelled text", "parallel text", "pictures", "series", "episodes", "environment"
    ]
    """the kind of data that it is learned from"""
    predicts: Literal["next", "hidden", "class", "number", "action"]
    """every next token or intensity, hidden tokens, one class or some numbers a row, or the action
    of every step"""
    model: str
    """module of `everyformer.models`, and the class or function that makes it of a config"""
    train: str
    """how a member is trained for it on a user's data"""
    encodes: bool = False
    """whether an encoder reads a source for a decoder that writes"""
    metrics: tuple[str, ...] = ("loss",)
    """what a table is ranked by: the first of these that an evaluation has"""
    use: str = "eval {run}"
    """the words after `everyformer` that a trained run is first used by"""

    @property
    def classifies(self) -> bool:
        """True if it names the class of a row."""
        return self.predicts == "class"

    @property
    def measures(self) -> bool:
        """True if it answers a row with numbers."""
        return self.predicts == "number"

    @property
    def answers(self) -> bool:
        """True if it says one thing of a whole row."""
        return self.classifies or self.measures

    @property
    def series(self) -> bool:
        """True if it reads numbers at each step of a series."""
        return self.reads == "series"

    @property
    def word(self) -> str:
        """Name where the data say what is read: classify, regress; else its name."""
        return self.name.partition("-")[0] if self.answers else self.name

    @property
    def writes(self) -> bool:
        """True if what comes next is predicted, so that a model can generate."""
        return self.predicts == "next"

    @property
    def reads_text(self) -> bool:
        """True if tokens of text go in."""
        return "text" in self.reads

    @property
    def acts(self) -> bool:
        """True if it chooses actions, which it learns from recorded episodes."""
        return self.predicts == "action"

    @property
    def forward_only(self) -> bool:
        """True if what is predicted would leak from what comes later."""
        return self.writes or self.acts

    @property
    def pictures(self) -> bool:
        """True if it reads pictures."""
        return self.reads == "pictures"

    @property
    def draws(self) -> bool:
        """True if it generates pictures."""
        return self.writes and self.pictures

    @property
    def continues(self) -> bool:
        """True if it goes on with a text, from one segment to the next."""
        return self.writes and self.reads == "text"

    @property
    def carries(self) -> bool:
        """True if its rows go on with what others ended with, as texts do."""
        return self.continues

    @property
    def translates(self) -> bool:
        """True if it writes a text for a text."""
        return self.encodes and not self.pictures

    @property
    def summarised(self) -> bool:
        """True if global tokens may represent parts of its texts, which it reads both ways."""
        return self.embeds_text and not self.writes

    @property
    def embeds_text(self) -> bool:
        """True if one stack reads tokens of text."""
        return self.reads in ("text", "labelled text")


_BITS = ("bits_per_byte", "loss")
_ERRORS = ("scaled_rmse", "rmse")
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            LM, "tokens -> the next token at every position", "text", "next",
            "language:LanguageModel", "--data mytext.txt", metrics=_BITS,
            use="generate {run} --prompt '...'",
        ),
        Task(
            MLM, "tokens, some of them hidden -> the hidden ones", "text", "hidden",
            "masked:MaskedLanguageModel", "--data mytext.txt --task mlm", metrics=_BITS,
            use="predict {run} 'a [MASK] of text'",
        ),
        Task(
            TEXT, "tokens -> a class", "labelled text", "class", "classifier:TextClassifier",
            "--data reviews.csv", metrics=("accuracy",),
            use="predict {run} 'your text'",
        ),
        Task(
            IMAGE, "a picture -> a class", "pictures", "class", "classifier:ImageClassifier",
            "--data myimages.zip", metrics=("accuracy",),
            use="predict {run} mypicture.png",
        ),
        Task(
            SEQ2SEQ, "a source text -> a target text", "parallel text", "next",
            "seq2seq:EncoderDecoder",
            "--data corpus-en-de.zip --tokenizer bpe:8000 --data.tokens 4096", encodes=True,
            metrics=_BITS, use="eval {run} --bleu",
        ),
        Task(
            PIXELS, "a picture -> the next intensity at every position", "pictures", "next",
            "pixels:PixelModel", "--data myimages.zip --task pixels",
            metrics=("bits_per_dim", "loss"), use="generate {run}",
        ),
        Task(
            ENLARGE, "a small picture -> a large one", "pictures", "next",
            "pixels:SuperResolution",
            "--data myimages.zip --task super-resolution --data.small 8", encodes=True,
            metrics=("bits_per_dim", "loss"), use="generate {run}",
        ),
        Task(
            SERIES, "a series of numbers -> a class", "series", "class",
            "classifier:SeriesClassifier", "--data myseries.npz", metrics=("accuracy",),
            use="predict {run} myseries.npz",
        ),
        Task(
            TEXT_NUMBER, "tokens -> a number", "labelled text", "number",
            "classifier:TextClassifier", "--data reviews.csv --task regress", metrics=_ERRORS,
            use="predict {run} 'your text'",
        ),
        Task(
            IMAGE_NUMBER, "a picture -> a number", "pictures", "number",
            "classifier:ImageClassifier", "--data myimages.npz --task regress", metrics=_ERRORS,
            use="predict {run} mypicture.png",
        ),
        Task(
            SERIES_NUMBER, "a series of numbers -> a number", "series", "number",
            "classifier:SeriesClassifier", "--data myseries.npz --task regress", metrics=_ERRORS,
            use="predict {run} myseries.npz",
        ),
        Task(
            DECISION, "returns-to-go, states and actions -> the next action", "episodes", "action",
            "decision:decision_model", "--data myepisodes", metrics=("action_loss",),
        ),
    )
}  # fmt: skip
ALL_TASKS: tuple[TaskName, ...] = get_args(TaskName)
GONE = {
    "forecast": "forecasting of series left the library",
    "policy": "proximal policy optimisation left the library for examples/ppo_gtrxl.py",
}
"""tasks of earlier versions, and what became of each"""


def tasks_that(what: str) -> tuple[str, ...]:
    """Names of the tasks whose record says yes to ``what``, a field or property of `Task`."""
    return tuple(name for name, task in TASKS.items() if getattr(task, what))


def tasks_called(word: str) -> tuple[str, ...]:
    """The task of this name, or those that share the word; () where there is none."""
    if word in TASKS:
        return (word,)
    return tuple(name for name, task in TASKS.items() if task.word == word)
