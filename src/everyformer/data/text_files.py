"""Files of text: what all kinds of them share, and text that is learned as it is."""

from __future__ import annotations

from everyformer.core.errors import DataError
from everyformer.core.tasks import TASKS, TaskName
from everyformer.data.config import (
    Groups,
    MaskOptions,
    PackingOptions,
    ParallelOptions,
    PartOptions,
    SharedOptions,
    TableOptions,
    TokenOptions,
)
from everyformer.data.dataset import Dataset
from everyformer.data.kind import Kind, Request, refuse
from everyformer.data.layout import without_notes
from everyformer.data.masking import masked
from everyformer.data.table import DELIMITED, TABLES
from everyformer.data.text import load_text

OF_PAIRS = ("source_column", "target_column")


class TextFiles(Kind):
    """Base of the kinds of text, which one source may be: its task decides."""

    reads: Groups = (SharedOptions, PartOptions, TokenOptions, TableOptions)

    @property
    def task(self) -> TaskName:
        return self.request.text_task

    @property
    def called(self) -> str:
        return f"the task {self.task}"

    def check(self) -> None:
        endings = {entry.suffix for entry in without_notes(self.request.source.entries)}
        data = f"'{self.config.source}'"
        if not endings <= TABLES:
            refuse(self.config, TableOptions.names(), data, TableOptions.elsewhere)
        if not endings & DELIMITED:
            refuse(self.config, ("header",), data, ", whose columns have names")
        super().check()


class Text(TextFiles):
    """Text that is learned as it is, or with tokens hidden."""

    name = "text"
    reads = (*TextFiles.reads, PackingOptions, MaskOptions)

    @classmethod
    def recognises(cls, request: Request) -> bool:
        """True of all that no other kind has recognised."""
        return True

    def check(self) -> None:
        task = TASKS[self.task]
        if task.series:
            raise DataError(
                f"'{self.config.source}' holds no series, which the task {task.name} needs; give "
                "them as arrays (N, T, C) with their targets in an .npz"
            )
        if task.pictures:
            raise DataError(
                f"'{self.config.source}' holds no pictures, which the task {task.name} needs; give "
                "the folder or zip of .png or .jpg files (a table of them lies beside), or take "
                "the task lm or classify-text"
            )
        super().check()
        refuse(self.config, OF_PAIRS, self.called, ParallelOptions.elsewhere)
        refuse(self.config, ("label_column",), self.called, "; leave it out, or classify")

    def load(self) -> Dataset:
        text = load_text(self.request.source, self.config, self.request.tokenizer)
        return masked(text, self.config) if TASKS[self.task].predicts == "hidden" else text
