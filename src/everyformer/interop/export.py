"""Models as programs for elsewhere: `torch.export` and ONNX, with dynamic batch and length.

    export_program(model, "model.pt2")     # torch.export.load(path).module()(tokens=..., keep=...)
    export_onnx(model, "model.onnx")       # onnxruntime.InferenceSession(path).run(...)

Inputs of a model of text: ``tokens`` (batch, length) int64; ``padding_mask`` (batch, length) bool,
True = is real; ``types`` (batch, length) int64 where the model has such. Of an image classifier:
``pixels`` (batch, channels, height, width), normalised floats. Output: ``logits``, as of the model.

A program of torch keeps the fast operators of this library, so that it must be imported before
`torch.export.load`. ONNX has no such operators: their forms in its own (`engines.exported`) are
linear in the length where the member is. Any module of torch with mixers of ours in it is written
by `torch.onnx.export(module, ..., dynamo=True)` as it is. Not exported: states that grow with a
text, encoder-decoders, pixel models.
"""

import copy
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.config import to_dict
from everyformer.core.errors import ConfigError, EveryformerError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.modules import evaluating
from everyformer.core.tasks import TASKS
from everyformer.engines.exported import RUNTIME, one_node
from everyformer.engines.operators import FORMS
from everyformer.engines.ranges import HALF
from everyformer.interop.stateful import STATE, example, start_tensors
from everyformer.models.base import Model
from everyformer.system.files import expanded, file_written_whole
from everyformer.system.plain import to_json
from sequence_laws.extras import extra_module

Operators = Literal["onnx", "onnxruntime"]
ABLE = tuple(
    name for name, task in TASKS.items() if task.embeds_text or (task.pictures and task.answers)
)
"""tasks whose models can be exported"""
LONGEST = 150
"""tokens of the longest text that is compared: more than two chunks of any form"""
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
        padding_mask: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        mask = None if padding_mask is None else Mask(padding_mask=padding_mask)
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
    path = _ending(model, path, ".pt2")
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


def export_onnx(
    model: Model, path: str | Path, *, state: bool = False, operators: Operators = "onnx"
) -> Exported:
    """Write ``model`` for ONNX, and compare what onnxruntime makes of it with the model.

    Compared are a batch of one, other lengths than the traced one, and the longest (at most
    `LONGEST`): to 1e-4 of the largest output or, in half precision, to twice what that costs the
    model itself. Configuration and longest sequence are written into the file's metadata, under
    ``everyformer``.

    Args:
        model: as in `export_program`. path: ends in ``.onnx``.
        state: a text may come in pieces: the file takes ``state.NAME`` for each tensor of the
            model's state too, which begins as `start_tensors` (model, inputs, batch), and gives
            ``next.NAME``, the same after the piece. Attention is a node ``Attention`` then, a
            linear recurrence (linear, performer, rfa, aft-simple) a node ``LinearAttention``.
        operators: of files with a state: ``onnx``, the standard's, opset 24, or 27 for a linear
            recurrence (onnxruntime 1.32 or later); ``onnxruntime``, its own for a linear
            recurrence, which are 3 to 15 times as fast there, and run from 1.31 on.

    Raises:
        ConfigError, UnsupportedError: as there; an operator that ONNX does not have; a dtype that
            onnxruntime does not compute in (bfloat16); a state that there is not, or that changes
            its form; an onnxruntime that is too old for the file.
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
        EveryformerError: onnxruntime's output is not the model's; no file is left.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        extra_module(package, "export", "export to ONNX")
    path = _ending(model, path, ".onnx")
    with evaluating(model), torch.no_grad(), _quiet():
        program, names = _stream(model) if state else (_program(model), None)
        forms = {operation._opoverload: form for operation, form in FORMS.items()}
        called = {node.target for node in program.graph.nodes} - forms.keys()
        custom = {str(target) for target in called if "everyformer" in str(target)}
        if custom:
            raise UnsupportedError(
                f"ONNX does not have the operator(s) {', '.join(sorted(custom))} of this model: "
                "use export_program, or a member that docs/python.md lists for ONNX"
            )
        with one_node() if state else nullcontext():
            program = program.run_decompositions(forms)
        onnx_program = _to_onnx(program, names, operators)
    assert onnx_program is not None
    onnx_program.model.metadata_props["everyformer"] = _about(model)
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    with file_written_whole(path.absolute()) as temporary:
        # a file of protobuf ends at 2 GB
        onnx_program.save(temporary, external_data=size > 1.5e9)
        difference = _compare(model, temporary)
    names = [value.name or "" for value in onnx_program.model.graph.inputs]
    return Exported(path, tuple(names), model.longest, difference)


def _about(model: Model) -> str:
    """Metadata of an exported program: the configuration, the longest sequence, and what
    `sequence_laws` asks of it: the tokens that it reads, and whether later ones are not seen."""
    task = TASKS[model.config.task]
    description = {"vocabulary": model.config.vocabulary, "causal": task.forward_only}
    about = {"config": to_dict(model.config), "longest": model.longest}
    return to_json(about | {"text": description if task.embeds_text else None})


def _ending(model: object, path: str | Path, suffix: str) -> Path:
    if not isinstance(model, Model):
        raise ConfigError(
            f"this writes models of create_model or load, not a {type(model).__name__}: a module "
            "of your own with mixers in it goes through torch.onnx.export(module, inputs, "
            "dynamo=True) or torch.export.export"
        )
    path = expanded(path)
    if path.suffix != suffix:
        raise ConfigError(f"{path} must end in '{suffix}'")
    return path


def _program(model: Model) -> torch.export.ExportedProgram:
    """Traced on an example, with batch and length left open."""
    longest = model.longest
    length = 6 if longest is None else min(6, longest)
    inputs = _inputs(model, 3, length)
    free: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if model.config.does.embeds_text and length > 1:
        free[1] = torch.export.Dim("length", min=1, max=longest)
    return _traced(Program(model), inputs, dict.fromkeys(inputs, free))


def _stream(model: Model) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Likewise with a state, what grows in it left open too; and names of the state's tensors."""
    longest = model.longest
    inputs: dict[str, Any] = _inputs(model, 3, 5 if longest is None else min(5, longest // 2))
    opens = example(model, 3)
    free, batch = torch.export.Dim.DYNAMIC, torch.export.Dim("batch", min=1)
    # what fits into tables depends on the past
    length = torch.export.Dim("length", min=1) if longest is None else free
    shapes: dict[str, Any] = {name: {0: batch, 1: length} for name in inputs}
    inputs["state"] = state = opens.tensors()
    shapes["state"] = {name: {0: batch} | dict.fromkeys(opens.grows[name], free) for name in state}
    return _traced(opens.stream, inputs, shapes), list(state)


def _traced(
    program: nn.Module, inputs: dict[str, Any], shapes: dict[str, Any]
) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(program, (), inputs, dynamic_shapes=shapes)
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
    if config.does.pictures:
        assert config.image is not None
        pixels = torch.rand(batch, *config.image, generator=draw) * 2 - 1
        return {"pixels": pixels.to(weight)}
    size = (batch, length)
    tokens = torch.randint(config.vocabulary, size, generator=draw)
    inputs = {"tokens": tokens, "padding_mask": torch.rand(size, generator=draw) > 0.3}
    inputs["padding_mask"][:, 0] = True
    if config.token_types and "types" in inspect.signature(model.forward).parameters:
        inputs["types"] = torch.randint(config.token_types, size, generator=draw)
    return {name: value.to(weight.device) for name, value in inputs.items()}


def _to_onnx(
    program: torch.export.ExportedProgram, state: Sequence[str] | None, operators: Operators
) -> torch.onnx.ONNXProgram | None:
    names: dict[str, Any] = {"output_names": ["logits"]}
    if state is not None:
        names["input_names"] = ["tokens", "padding_mask", *(f"{STATE}{name}" for name in state)]
        names["output_names"] += [f"next.{name}" for name in state]
        names["opset_version"] = 24
    try:
        result = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise UnsupportedError(
            f"ONNX cannot express this model ({reason}): export it with export_program"
        ) from error
    if result is not None and operators == "onnx" and RUNTIME in result.model.opset_imports:
        # the standard's operator has the inputs of onnxruntime's; others took on types alone since
        result.model.opset_imports[""] = 27
        del result.model.opset_imports[RUNTIME]
        for node in result.model.graph.all_nodes():
            node.domain = ""
    return result


def compare_program(model: Model, path: str | Path) -> float:
    """Largest difference between the program at ``path``, loaded again, and the model.

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
        raise _not_run(model, error) from error

    def run(inputs: dict[str, Tensor]) -> Tensor:
        fed = {name: value.cpu().numpy() for name, value in inputs.items()}
        return torch.from_numpy(session.run(None, fed)[0])

    def stream(inputs: dict[str, Tensor]) -> Tensor:
        tokens, padding_mask = inputs["tokens"].cpu().numpy(), inputs["padding_mask"].cpu().numpy()
        start = start_tensors(model, names, len(tokens))
        state, logits = [t.cpu().numpy() for t in start.values()], []
        cuts = sorted({0, tokens.shape[1] // 2, tokens.shape[1] // 2 + 1, tokens.shape[1]})
        for piece in map(slice, cuts, cuts[1:]):
            given = tokens[:, piece], padding_mask[:, piece], *state
            [new, *state] = session.run(None, dict(zip(names, given, strict=True)))
            logits.append(torch.from_numpy(new))
        return torch.cat(logits, 1)

    names = [given.name for given in session.get_inputs()]
    try:
        if any(name.startswith(STATE) for name in names):
            return _difference(model, stream, "onnxruntime, in pieces,")
        return _difference(model, run, "onnxruntime")
    except EveryformerError:
        raise
    except Exception as error:
        raise _not_run(model, error) from error


def _not_run(model: Model, error: Exception) -> UnsupportedError:
    """Refusal of a file that onnxruntime does not run."""
    kind = next(model.parameters()).dtype
    mend = "export model.float()" if kind in HALF else "export it with export_program"
    if "LinearAttention" in str(error) or "opset" in str(error):
        mend = (
            "it is too old for opset 27, so install onnxruntime 1.32 or later, or give "
            "operators='onnxruntime'"
        )
    return UnsupportedError(
        f"onnxruntime cannot run this model in {str(kind).removeprefix('torch.')}, so that no "
        f"one could compare it with ours: {mend} ({str(error).splitlines()[0]})"
    )


@torch.no_grad()
def _difference(model: Model, run: Callable[[dict[str, Tensor]], Tensor], what: str) -> float:
    """Largest difference between ``run`` and the model at sizes that were not traced.

    Half precision is held to float32, by twice what the model's own rounding costs there.
    """
    longest, largest = min(model.longest or LONGEST, LONGEST), 0.0
    kind = next(model.parameters()).dtype
    wide = copy.deepcopy(model).float() if kind in HALF else model
    for batch, length in ((1, 1), (1, min(5, longest)), (2, longest)):
        inputs = _inputs(model, batch, length)

        def outputs(of: Model, inputs: dict[str, Tensor] = inputs) -> Tensor:
            like = next(of.parameters())
            given = {n: t.to(like) if t.is_floating_point() else t for n, t in inputs.items()}
            with evaluating(of):
                logits = Program(of)(**given).cpu().to(torch.promote_types(kind, torch.float32))
            return logits[inputs["padding_mask"].cpu()] if logits.dim() == 3 else logits

        def farthest(a: Tensor, b: Tensor) -> float:
            return float((a - b).abs().max())

        expected, got = outputs(wide), run(inputs)
        got = got[inputs["padding_mask"].cpu()] if got.dim() == 3 else got
        scale, difference = max(1.0, float(expected.abs().max())), farthest(got, expected)
        allowed = TOLERANCE * scale
        if kind in HALF:
            allowed = 2 * farthest(outputs(model), expected) + torch.finfo(kind).eps * scale
        largest = max(largest, difference)
        if not difference <= allowed:
            raise EveryformerError(
                f"the output of {what} differs from the model's by {difference:.3g} at batch "
                f"{batch}, length {length}, where {allowed:.3g} would be rounding: the file would "
                "be of no use"
            )
    return largest


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
