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
from everyformer.laws.adapters.plain import plain
from everyformer.laws.inputs import Inputs
from everyformer.laws.subject import Subject
from everyformer.system.extras import extra_module

_KINDS = {"tensor(int64)": torch.int64, "tensor(int32)": torch.int32, "tensor(float)": None}


class Frozen(Subject):
    """A model that is as its file has it."""

    doubles = False


class OnnxModule(nn.Module):
    """An ONNX graph of one input, as a module."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        runtime = extra_module("onnxruntime", "export", "a model in an ONNX file")
        self.session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.reads = self.session.get_inputs()
        if len(self.reads) != 1 or self.reads[0].type not in _KINDS:
            given = ", ".join(f"{one.name} {one.type}" for one in self.reads)
            raise ConfigError(
                f"the graph of '{path}' reads {given}: expected one input, of token ids or float32"
            )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """All outputs of the graph."""
        kind = _KINDS[self.reads[0].type]
        given = np.asarray(x.float() if kind is None else x.to(kind))
        return tuple(map(torch.from_numpy, self.session.run(None, {self.reads[0].name: given})))


def from_file(file: str, causal: bool | None = None, **reads: Any) -> Subject:
    """The subject of a file, of token ids below ``vocabulary`` or features of ``width``.

    Raises:
        ConfigError: there is no such file, or what its model reads was not said and cannot be seen.
        MissingExtraError: onnxruntime is not installed.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file '{file}'")
    if path.suffix == ".pt2":
        model: nn.Module = torch.export.load(path).module()
        build = [f"model = torch.export.load({str(path)!r}).module()"]
    else:
        model = OnnxModule(path)
        build = [
            "from everyformer.laws.adapters.files import OnnxModule",
            f"model = OnnxModule({str(path)!r})",
        ]
    inputs = Inputs(vocabulary=reads.get("vocabulary"), width=reads.get("width"))
    if inputs == Inputs():
        inputs = _seen(model, file)
    return plain(model, path.stem, inputs, causal=causal is not False, build=build, kind=Frozen)


def _seen(model: nn.Module, file: str) -> Inputs:
    """Channels of features, as a graph tells them; the number of tokens is in none."""
    shape = model.reads[0].shape if isinstance(model, OnnxModule) else []
    if len(shape) == 3 and isinstance(shape[2], int):
        return Inputs(width=shape[2])
    raise ConfigError(
        f"what '{file}' reads cannot be seen in it: give --vocabulary N for token ids, or "
        "--width D for features"
    )
