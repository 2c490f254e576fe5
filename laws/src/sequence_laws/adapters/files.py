"""Models in files: ONNX, run by onnxruntime, and programs that `torch.export` saved.

They compute in float32 alone, without gradients and as in evaluation: laws compare them in
float32, where a difference of less than 0.3% of the outputs cannot be distinguished from rounding.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from sequence_laws.adapters.found import plain
from sequence_laws.adapters.plain import Plain
from sequence_laws.errors import ConfigError
from sequence_laws.extras import extra_module
from sequence_laws.inputs import Inputs
from sequence_laws.subject import Subject

_KINDS = {"float": "float32"}
"""what numpy calls the dtypes of ONNX that have another name there"""


class FileModule(nn.Module):
    """A program of one input, and of ``padding_mask`` and ``types`` where everyformer
    wrote it: all is real by default, and of type 0."""

    def __init__(self, path: Path, names: list[str], about: str) -> None:
        super().__init__()
        known = json.loads(about) if about else {}
        self.names, self.max_length = names, known.get("longest")
        self.text = known.get("text")
        """vocabulary, and whether it is causal; of other programs nothing is known"""
        others = bool(known) and not self.text
        if names[1:] not in ([], ["padding_mask"], ["padding_mask", "types"]) or others:
            raise ConfigError(
                f"the program of '{path}' reads {', '.join(names)}: expected one input, of token "
                "ids or float32 (and of everyformer's own, of text, keep and types)"
            )

    def given(self, x: Tensor, padding_mask: Tensor | None) -> dict[str, Tensor]:
        """All inputs by name."""
        real = torch.ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else padding_mask
        x = x.float() if x.is_floating_point() else x
        return dict(zip(self.names, (x, real, 0 * real.long()), strict=False))


class OnnxModule(FileModule):
    """An ONNX graph as a module."""

    def __init__(self, path: str | Path) -> None:
        runtime = extra_module("onnxruntime", "onnx", "a model in an ONNX file", of="sequence-laws")
        quiet = runtime.SessionOptions()
        quiet.log_severity_level = 4  # what it refuses is raised, too
        session = runtime.InferenceSession(str(path), quiet, ["CPUExecutionProvider"])
        reads, about = session.get_inputs(), session.get_modelmeta().custom_metadata_map
        super().__init__(Path(path), [one.name for one in reads], about.get("everyformer", ""))
        self.session, self.reads, self.width = session, reads, reads[0].shape[-1]

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """All outputs of the graph."""
        given = self.given(x, padding_mask)
        kinds = {one.name: one.type.removeprefix("tensor(")[:-1] for one in self.reads}
        fed = {n: given[n].numpy().astype(_KINDS.get(kind, kind)) for n, kind in kinds.items()}
        return tuple(map(torch.from_numpy, self.session.run(None, fed)))


class ProgramModule(FileModule):
    """A program that `torch.export` saved as a module."""

    def __init__(self, path: str | Path) -> None:
        about = {"everyformer": ""}
        program = torch.export.load(path, extra_files=about)
        spec = cast(TreeSpec, program.call_spec.in_spec)
        self.count = spec.child(0).num_children
        places = [f"input {n}" for n in range(self.count)]
        super().__init__(Path(path), [*places, *spec.child(1).context], about["everyformer"])
        self.program = program.module()

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """The outputs of the program."""
        given = self.given(x, padding_mask)
        names, words = self.names[: self.count], self.names[self.count :]
        return self.program(*map(given.get, names), **{word: given[word] for word in words})


class Frozen(Plain):
    """A model that is as its file has it."""

    doubles = False


def from_file(file: str, causal: bool | None = None, **reads: Any) -> Subject:
    """The subject of a file, of token ids below ``vocabulary`` or features of ``width``; a file of
    everyformer tells what it reads, and what it claims.

    Raises:
        ConfigError: there is no such file, or what its model reads was not said and cannot be seen.
        MissingExtraError: onnxruntime is not installed.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file '{file}'")
    kind = ProgramModule if path.suffix == ".pt2" else OnnxModule
    model = kind(path)
    build = [
        f"from sequence_laws.adapters.files import {kind.__name__}",
        f"model = {kind.__name__}({str(path)!r})",
    ]
    inputs = Inputs(vocabulary=reads.get("vocabulary"), width=reads.get("width"))
    if model.text is not None:
        inputs = Inputs(vocabulary=model.text["vocabulary"])
        causal = model.text["causal"] if causal is None else causal
    given = None if inputs == Inputs() else inputs
    subject = plain(model, path.stem, given, causal=causal, build=build, kind=Frozen)
    subject.masks = subject.masks if model.names[1:] else ()
    return subject
