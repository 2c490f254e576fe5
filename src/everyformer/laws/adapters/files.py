"""Models in files: ONNX, run by onnxruntime, and programs that `torch.export` saved.

They compute in float32 alone, without gradients and as in evaluation: laws compare them in
float32, where a difference of less than 0.3% of the outputs cannot be told from rounding.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.errors import ConfigError
from everyformer.core.tasks import TASKS
from everyformer.laws.adapters import as_told, inputs_of
from everyformer.laws.adapters.plain import plain
from everyformer.laws.inputs import Inputs
from everyformer.laws.subject import Subject
from everyformer.system.extras import extra_module
from everyformer.system.plain import from_json

_KINDS = {
    f"tensor({str(kind).removeprefix('torch.').replace('float32', 'float')})": kind
    for kind in (torch.int64, torch.int32, torch.float32, torch.float16, torch.bool)
}


class FileModule(nn.Module):
    """A program of one input, and of ``keep`` and ``types`` where `everyformer.interop.export`
    wrote it: all is real where nothing is said, and of type 0."""

    def note(self, path: Path, names: list[str], about: str) -> None:
        """Note the names of its inputs, and what the export wrote about its model.

        Raises:
            ConfigError: it reads more than is known, or no text.
        """
        if not names or names[1:] not in ([], ["keep"], ["keep", "types"]):
            raise ConfigError(
                f"the program of '{path}' reads {', '.join(names)}: expected one input, of token "
                "ids or float32 (and keep and types of everyformer's own)"
            )
        known = from_json(about) if about else {}
        self.names, self.max_length, self.config = names, known.get("longest"), known.get("config")
        task = None if self.config is None else TASKS[self.config["task"]]
        if task is not None and not task.embeds_text:
            raise ConfigError(f"'{path}' is of the task '{task.name}': these laws need one of text")

    def given(self, x: Tensor, keep: Tensor | None) -> list[Tensor]:
        """All inputs, in the order of their names."""
        ones = torch.ones(x.shape[:2], dtype=torch.bool)
        more = [ones if keep is None else keep, 0 * ones.long()][: len(self.names) - 1]
        return [x.float() if x.is_floating_point() else x, *more]


class OnnxModule(FileModule):
    """An ONNX graph as a module."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        runtime = extra_module("onnxruntime", "export", "a model in an ONNX file")
        quiet = runtime.SessionOptions()
        quiet.log_severity_level = 4  # what it refuses is raised, too
        self.session = runtime.InferenceSession(str(path), quiet, ["CPUExecutionProvider"])
        self.reads = self.session.get_inputs()
        about = self.session.get_modelmeta().custom_metadata_map.get("everyformer", "")
        self.note(Path(path), [one.name for one in self.reads], about)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, ...]:
        """All outputs of the graph."""
        pairs = zip(self.reads, self.given(x, keep), strict=True)
        fed = {one.name: np.asarray(t.to(_KINDS[one.type])) for one, t in pairs}
        return tuple(map(torch.from_numpy, self.session.run(None, fed)))


class ProgramModule(FileModule):
    """A program that `torch.export` saved as a module."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        about = {"everyformer": ""}
        program = torch.export.load(path, extra_files=about)
        self.program, spec = program.module(), program.call_spec.in_spec
        assert spec is not None
        self.count = spec.child(0).num_children
        names = [*(f"input {n}" for n in range(self.count)), *spec.child(1).context]
        self.note(Path(path), names, about["everyformer"])

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Any:
        """The outputs of the program."""
        given = self.given(x, keep)
        named = dict(zip(self.names, given, strict=True))
        words = {name: named[name] for name in self.names[self.count :]}
        return self.program(*given[: self.count], **words)


class Frozen(Subject):
    """A model that is as its file has it."""

    doubles = False

    def __init__(self, model: FileModule, *words: Any, **known: Any) -> None:
        super().__init__(model, *words, **known)
        if model.names[1:]:
            self.masks = ("right", "left", "holes")

    def call(self, model: nn.Module, x: Tensor, keep: Tensor | None = None) -> Any:
        """One pass."""
        return model(x, keep)

    def call_code(self, x: str, keep: str | None = None) -> str:
        """The Python of it."""
        return f"model({x}{'' if keep is None else f', {keep}'}){self.place}"


def from_file(file: str, causal: bool | None = None, **reads: Any) -> Subject:
    """The subject of a file, of token ids below ``vocabulary`` or features of ``width``; a file of
    `everyformer.interop.export` tells what it reads, and what it claims.

    Raises:
        ConfigError: there is no such file, or what its model reads was not said and cannot be seen.
        MissingExtraError: onnxruntime is not installed.
    """
    path, given = Path(file).expanduser(), inputs_of(**reads)
    if not path.is_file():
        raise ConfigError(f"there is no file '{file}'")
    kind = ProgramModule if path.suffix == ".pt2" else OnnxModule
    model = kind(path)
    build = [
        f"from everyformer.laws.adapters.files import {kind.__name__}",
        f"model = {kind.__name__}({str(path)!r})",
    ]
    config = model.config
    claim = TASKS[config["task"]].forward_only if config and causal is None else causal
    inputs = Inputs(vocabulary=config["vocabulary"]) if config else given or _seen(model, file)
    subject = plain(model, path.stem, inputs, causal=claim, build=build, kind=Frozen)
    return as_told(subject, given, causal)


def _seen(model: nn.Module, file: str) -> Inputs:
    """Channels of features, as a graph tells them; the number of tokens is in none."""
    shape = model.reads[0].shape if isinstance(model, OnnxModule) else []
    if len(shape) == 3 and isinstance(shape[2], int):
        return Inputs(width=shape[2])
    raise ConfigError(
        f"what '{file}' reads cannot be seen in it: give --vocabulary N for token ids, or "
        "--width D for features"
    )
