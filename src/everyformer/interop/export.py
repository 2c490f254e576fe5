"""Models as programs for elsewhere: `torch.export` and ONNX, with dynamic batch and length.

    export_program(model, "model.pt2")     # torch.export.load(path).module()(tokens=..., keep=...)
    export_onnx(model, "model.onnx")       # onnxruntime.InferenceSession(path).run(...)

Inputs of a model of text: ``tokens`` (batch, length) int64; ``keep`` (batch, length) bool, True =
is real; ``types`` (batch, length) int64 where the model has such. Of an image classifier:
``pixels`` (batch, channels, height, width), normalised floats. Output: ``logits``, as of the model.

A program of torch keeps the fast operators of this library, so that it must be imported before
`torch.export.load`. ONNX has no such operators: softmax attention, gMLP and aMLP are exported as
they are, the Attention-Free Transformers and kernel attention by their literal equation, which
takes O(L^2) memory or more whatever the member's own cost. Not exported: streaming states,
encoder-decoders, pixel models.
"""

import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.config import to_dict
from everyformer.core.dispatch import take
from everyformer.core.errors import ConfigError, EveryformerError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.tasks import TASKS
from everyformer.engines.averages import factors  # noqa: F401 (has the operator BAND)
from everyformer.genes.mixers import MIXERS
from everyformer.models.base import Model, evaluating
from everyformer.system.extras import extra_module
from everyformer.system.files import expanded, file_written_whole
from everyformer.system.plain import to_json

ABLE = tuple(
    name for name, task in TASKS.items() if task.embeds_text or (task.pictures and task.answers)
)
"""tasks whose models can be exported"""
BAND = torch.ops.everyformer.band_product.default
TOLERANCE = 1e-4
"""largest difference from the model's own output that passes, relative to the largest output"""


class Exported(NamedTuple):
    """A written ONNX file, and how near it is to the model."""

    path: Path
    inputs: tuple[str, ...]
    longest: int | None
    """longest sequence that the model's tables allow; None: any"""
    difference: float
    """largest difference between onnxruntime's output and the model's, over what was tried"""


class Program(nn.Module):
    """A model with tensors alone going in and coming out."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor | None = None,
        pixels: Tensor | None = None,
        keep: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        mask = None if keep is None else Mask(keep=keep)
        more = {} if types is None else {"types": types}
        inputs = pixels if tokens is None else tokens
        assert inputs is not None
        return self.model(inputs, mask=mask, **more).logits


def export_program(model: Model, path: str | Path) -> torch.export.ExportedProgram:
    """Write ``model`` as a program of `torch.export`.

    Args:
        model: of a task 'lm', 'mlm', 'classify-text' or 'classify-image'; exported in evaluation
            mode. path: ends in ``.pt2``.

    Raises:
        ConfigError: another ending. UnsupportedError: another task.
    """
    path = _ending(path, ".pt2")
    # with gradients, learned biases take another path through torch's attention
    with evaluating(model), torch.no_grad():
        program = _program(model)
    with file_written_whole(path.absolute()) as temporary, _Patient(temporary, "w") as file:
        torch.export.save(program, file, extra_files={"everyformer": _about(model)})
        if file.refused is not None:
            raise file.refused
    return program


class _Patient(io.FileIO):
    """A file that keeps the system's refusal to write for later: torch's writer of archives, told
    of it in the middle of one, ends the process."""

    refused: OSError | None = None

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        while left and self.refused is None:
            try:
                left = left[super().write(left) :]
            except OSError as error:
                self.refused = error
        return memoryview(data).nbytes


def export_onnx(model: Model, path: str | Path) -> Exported:
    """Write ``model`` for ONNX, and compare what onnxruntime makes of it with the model.

    Compared are a batch of one, other lengths than the traced one, and the longest (at most 64).
    Configuration and longest sequence are written into the file's metadata, under ``everyformer``.

    Args:
        model: as in `export_program`. path: ends in ``.onnx``.

    Raises:
        ConfigError, UnsupportedError: as there; an operator that ONNX does not have; a dtype that
            onnxruntime does not compute in (bfloat16).
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
        EveryformerError: onnxruntime's output is not the model's; no file is left.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        extra_module(package, "export", "export to ONNX")
    path = _ending(path, ".onnx")
    with evaluating(model), torch.no_grad(), _literal(model), _quiet():
        program = _program(model).run_decompositions({BAND: _band_by_lookup})
        custom = {
            str(node.target) for node in program.graph.nodes if "everyformer" in str(node.target)
        }
        if custom:
            literal = [name for name in MIXERS.names() if MIXERS.get(name).exports_literally]
            raise UnsupportedError(
                f"ONNX does not have the operator(s) {', '.join(sorted(custom))} of this model: "
                "use export_program, or a member among attention, gmlp, amlp, "
                f"{', '.join(literal)}"
            )
        onnx_program = _to_onnx(program)
    assert onnx_program is not None
    onnx_program.model.metadata_props["everyformer"] = _about(model)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    with file_written_whole(path.absolute()) as temporary:
        # a file of protobuf ends at 2 GB
        onnx_program.save(temporary, external_data=size > 1.5e9)
        difference = _compare(model, temporary)
    return Exported(path, tuple(_inputs(model, 2, 2)), model.longest, difference)


def _about(model: Model) -> str:
    """What is written beside a program: the configuration, and the longest sequence."""
    return to_json({"config": to_dict(model.config), "longest": model.longest})


def _ending(path: str | Path, suffix: str) -> Path:
    path = expanded(path)
    if path.suffix != suffix:
        raise ConfigError(f"{path} must end in '{suffix}'")
    return path


def _program(model: Model) -> torch.export.ExportedProgram:
    """Traced on an example, with batch and length left open."""
    longest = model.longest
    length = 6 if longest is None else min(6, longest)
    inputs = _inputs(model, 3, length)
    batch = torch.export.Dim("batch", min=1)
    free: dict[int, Any] = {0: batch}
    if TASKS[model.config.task].embeds_text and length > 1:
        free[1] = torch.export.Dim("length", min=1, max=longest)
    shapes = dict.fromkeys(inputs, free)
    try:
        return torch.export.export(Program(model), (), inputs, dynamic_shapes=shapes)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, EveryformerError):
            raise
        reason = str(error).strip().splitlines()
        raise UnsupportedError(
            "torch.export cannot leave batch and length of this model open: "
            + " ".join(line.strip() for line in reason[:2])
        ) from error


def _inputs(model: Model, batch: int, length: int) -> dict[str, Tensor]:
    """Random inputs by name; some tokens are padding, never the first."""
    config, weight = model.config, next(model.parameters())
    draw = torch.Generator().manual_seed(batch + length)
    if config.task not in ABLE:
        raise UnsupportedError(
            f"a model of the task '{config.task}' cannot be exported; tasks that can: "
            f"{', '.join(ABLE)}"
        )
    if TASKS[config.task].pictures:
        assert config.image is not None
        pixels = torch.rand(batch, *config.image, generator=draw) * 2 - 1
        return {"pixels": pixels.to(weight)}
    size = (batch, length)
    tokens = torch.randint(config.vocabulary, size, generator=draw)
    inputs = {"tokens": tokens, "keep": torch.rand(size, generator=draw) > 0.3}
    inputs["keep"][:, 0] = True
    if config.token_types and "types" in inspect.signature(model.forward).parameters:
        inputs["types"] = torch.randint(config.token_types, size, generator=draw)
    return {name: value.to(weight.device) for name, value in inputs.items()}


def _to_onnx(program: torch.export.ExportedProgram) -> torch.onnx.ONNXProgram | None:
    try:
        return torch.onnx.export(program, dynamo=True, output_names=["logits"], verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise UnsupportedError(
            f"ONNX cannot express this model ({reason}): export it with export_program"
        ) from error


def compare_program(model: Model, path: str | Path) -> float:
    """Largest difference between the program at ``path``, loaded anew, and the model.

    Args: as in `export_program`. Raises:
        EveryformerError: it is more than rounding.
    """
    loaded = torch.export.load(path).module()
    return _difference(model, lambda inputs: loaded(**inputs).cpu(), "the exported program")


def _compare(model: Model, path: Path) -> float:
    """Largest difference between onnxruntime and the model."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    # its errors have no common base
    except Exception as error:
        kind = str(next(model.parameters()).dtype).removeprefix("torch.")
        raise UnsupportedError(
            f"onnxruntime cannot run this model in {kind}, so that no one could compare it with "
            f"ours: export model.float() ({str(error).splitlines()[0]})"
        ) from error

    def run(inputs: dict[str, Tensor]) -> Tensor:
        fed = {name: value.cpu().numpy() for name, value in inputs.items()}
        return torch.from_numpy(session.run(None, fed)[0])

    return _difference(model, run, "onnxruntime")


@torch.no_grad()
def _difference(model: Model, run: Callable[[dict[str, Tensor]], Tensor], what: str) -> float:
    """Largest difference between ``run`` and the model at sizes that were not traced."""
    longest = min(model.longest or 64, 64)
    largest = 0.0
    for batch, length in ((1, 1), (1, min(5, longest)), (2, longest)):
        inputs = _inputs(model, batch, length)
        with evaluating(model):
            expected = Program(model)(**inputs).cpu()
        got = run(inputs)
        difference = (got - expected).abs()
        if "keep" in inputs and expected.dim() == 3:
            difference = difference[inputs["keep"].cpu()]
        scale = max(1.0, float(expected.abs().max()))
        largest = max(largest, float(difference.max()))
        if not largest <= TOLERANCE * scale:
            raise EveryformerError(
                f"the output of {what} differs from the model's by {largest:.3g} at batch {batch}, "
                f"length {length}: the file would be of no use"
            )
    return largest


@contextmanager
def _literal(model: Model) -> Iterator[None]:
    """Mixers that are exported literally compute by their reference while the block runs."""
    changed = [m for m in model.modules() if isinstance(m, Mixer) and m.exports_literally]
    for mixer in changed:
        take(mixer.name, "by its definition", "exported programs have no operators of ours", True)
        mixer.forward = _by_reference(mixer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for mixer in changed:
            del mixer.forward


def _by_reference(mixer: Mixer) -> Callable[..., MixerOutput]:
    """``forward`` of a mixer by its `Mixer.reference`."""

    def forward(x: Tensor, *, state: State | None = None, **options: Any) -> MixerOutput:
        return MixerOutput(mixer.reference(x, **options), None, {})

    return forward


def _band_by_lookup(u: Tensor, v: Tensor, count: int) -> Tensor:
    """`everyformer.engines.averages.factors.band_product`, each row's window looked up."""
    window = torch.arange(u.shape[1], device=u.device)[:, None]
    window = window + torch.arange(count, device=u.device)
    return (u[:, :, None] * v[:, window]).sum(-1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says about torchvision and about torch's own code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
