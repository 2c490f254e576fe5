"""`everyformer convert SOURCE --out OUT`: third-party checkpoints in, models of ours out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from everyformer.cli.found import found_run
from everyformer.cli.parsing import say, verb
from everyformer.core.bounds import Count, Even
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.core.plugins import command
from everyformer.system.console import emit, facts
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.lab.convert.rules import Report
    from everyformer.lab.convert.source import ModelSource, Opened

FORMS = {
    "ours": "a saved model, which generate, eval, show and train --from take",
    "etc": "a saved model that goes on as an ETC, for longer texts",
    "hf": "a folder of transformers",
    "hf-model": "a folder of transformers with our own model class in it",
    "gguf": "a file .gguf of llama.cpp",
    "onnx": "a file .onnx",
    "program": "a file .pt2 of torch.export",
    "longformer": "a saved model for long texts",
    "bigbird": "a saved model for long texts",
}
FILES = ("gguf", "onnx", "program")
LONG = ("longformer", "bigbird", "etc")
LENGTH = 4096
SAVED = ("ours", *LONG)
"""forms of this library"""
OWN_SPLITTING = ("qwen2",)
"""systems whose texts transformers' AutoTokenizer splits by rules of its own, whatever the file of
the tokenizer says"""
SPLITS_OTHERWISE = (
    "AutoTokenizer of transformers splits texts of such a folder by rules of its own (digits one "
    "by one); PreTrainedTokenizerFast reads it as it is written"
)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """The words of `everyformer convert`."""

    source: tyro.conf.Positional[str]
    """folder of transformers (config.json and safetensors), name on the Hugging Face hub
    (OWNER/NAME), directory of a run, or folder of a saved model"""
    out: str
    """the folder, or with --to gguf, onnx and program the file, to write; it must not exist"""
    to: (
        Literal["ours", "hf", "hf-model", "gguf", "onnx", "program", "longformer", "bigbird", "etc"]
        | None
    ) = None
    """ours: a saved model of this library; hf: a checkpoint of transformers; hf-model: our own
    model class for transformers (lm); gguf: a file .gguf of llama.cpp; onnx: a file .onnx;
    program: a file .pt2 of torch.export; longformer, bigbird, etc: a saved model for long texts, of
    one with attention, whose weights it keeps (default: ours, of what is not)"""
    length: Count | None = None
    """with --to longformer, bigbird or etc: tokens that it shall read (default: 4096; etc: as
    before)"""
    window: Even | None = None
    """with --to longformer: W, tokens of its window (default: 512)"""
    block_size: Count | None = None
    """with --to bigbird: tokens of a block (default: 64)"""
    mixer: str | None = None
    """takes the place of attention in an imported checkpoint, with fresh weights"""
    type: str | None = None
    """which system of transformers to write: gpt2, bert, roberta, vit, marian, llama, mistral or
    qwen2, longformer or big_bird (default: the first that can say all that the model is)"""
    average: Count | None = None
    """of a run, take the mean of the weights in so many of the newest checkpoints (default: the
    best one)"""
    json: bool = False
    """machine output"""


@verb(
    ConvertOptions,
    about="Import a third-party model, or export one of ours for other programs.",
    examples=(
        "everyformer convert openai-community/gpt2 --out models/gpt2",
        "everyformer convert runs/gpt --to hf --out exported/gpt",
    ),
)
def run(options: ConvertOptions) -> int:
    """Convert, and print the account of every tensor."""
    out = expanded(options.out).absolute()
    if out.exists() and (not out.is_dir() or options.to in FILES or any(out.iterdir())):
        raise ConfigError(f"{options.out} exists and is not replaced: choose another --out")
    from everyformer.lab.convert.source import find_source, open_source
    from everyformer.stores.runs import runner_of
    from everyformer.training.run import check_writable

    folder, note = found_run(options.source)
    if note is not None:
        say(note)
    source = find_source(folder)
    form = _form(options, source)
    opened = open_source(source, mixer=options.mixer, average=options.average)
    check_writable(out.parent)
    if form in LONG:
        opened = _longer(opened, form, options)
    written, learned = _write(opened, form, out, options.type)
    fresh = [] if opened.report is None else opened.report.made
    config = opened.model.config
    about: dict[str, Any] = {
        "source": f"{options.source}, {source.what}",
        "out": f"{options.out}, {FORMS[form]}",
        "model": f"{config.member}, task {config.task}, "
        f"{sum(p.numel() for p in opened.model.parameters()):,} parameters",
        **learned,
    }
    if runner_of(config) is not None:
        about["store"] = "left out, so that nothing is looked up in what the run has stored"
    if options.json:
        emit(_machine(about, form, opened, written))
        return 0
    if fresh and options.mixer is not None:
        about["fresh"] = (
            f"the {len(fresh)} tensors of the mixer {options.mixer} have learned nothing yet"
        )
    if form in SAVED:
        about["next"] = _next(options.out, opened, bool(fresh) or form == "etc")
    print(facts(about))
    for title, report in (("tensors read", opened.report), ("tensors written", written)):
        if report is not None:
            print(f"\n{title}: {report.summary()}")
    return 0


def _form(options: ConvertOptions, source: ModelSource) -> str:
    """Form to write, once everything fits together."""
    form = options.to or ("" if source.ours else "ours")
    if not form:
        choices = "; ".join(f"{name} ({what})" for name, what in FORMS.items())
        raise ConfigError(f"{options.source} is {source.what}: say what --to make of it: {choices}")
    if options.type is not None and form != "hf":
        raise ConfigError(f"--type is for --to hf, not {form}: leave it out")
    forms_of = {"length": LONG, "window": LONG[:1], "block_size": LONG[1:2]}
    for name, forms in forms_of.items():
        if getattr(options, name) is not None and form not in forms:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is for --to {' or '.join(forms)}, not {form}: leave it out")
    return form


def _longer(opened: Opened, form: str, options: ConvertOptions) -> Opened:
    """The model for long texts, which is saved with the same tokenizer."""
    from everyformer.models.lengthen import lengthen

    names = ("window", "block_size")
    chosen = {name: n for name in names if (n := getattr(options, name)) is not None}
    usual = opened.model.config.tokens if form == "etc" else LENGTH
    model = lengthen(opened.model, form, options.length or usual, **chosen)
    return opened._replace(model=model)


def _write(
    opened: Opened, form: str, out: Path, model_type: str | None
) -> tuple[Report | None, dict[str, Any]]:
    """Write the model whole or not at all: the tensors of a checkpoint of transformers, and what
    else became of it."""
    from everyformer.lab.convert.gguf import export_gguf, fits
    from everyformer.lab.convert.tokenizer import export_tokenizer, exportable

    model, tokenizer = opened.model, opened.tokenizer
    note = {"tokenizer": opened.note} if opened.note else {}
    if form in ("hf", "hf-model") and tokenizer is not None and not exportable(tokenizer):
        note = {"tokenizer": f"{tokenizer}, left out: transformers has no form for it"}
    if form == "gguf" and tokenizer is not None and not fits(tokenizer):
        note = {"tokenizer": f"{tokenizer}, left out: llama.cpp would read texts otherwise"}
    if form in SAVED:
        from everyformer.training.saved import save_model

        save_model(model, out, tokenizer=tokenizer, **opened.known)
        return None, note
    if form == "hf":
        from everyformer.lab.convert.checkpoint import export_checkpoint, read_config

        report = export_checkpoint(model, out, model_type, tokenizer=tokenizer)
        if exportable(tokenizer) and read_config(out)["model_type"] in OWN_SPLITTING:
            note = {"tokenizer": f"{tokenizer}; {SPLITS_OTHERWISE}"}
        return report, note
    if form == "hf-model":
        from everyformer.interop.hf import EveryformerForCausalLM
        from everyformer.system.files import written_whole

        wrapped = EveryformerForCausalLM.wrap(model)  # type: ignore[arg-type]
        if tokenizer is not None:
            wrapped.generation_config.eos_token_id = tokenizer.separator
        with written_whole(out) as folder:
            wrapped.save_pretrained(folder)
            if tokenizer is not None:
                export_tokenizer(tokenizer, folder, model.config.tokens)
        return None, note
    if form == "gguf":
        return export_gguf(model, out, tokenizer), note
    from everyformer.interop.export import compare_program, export_onnx, export_program

    if form == "program":
        export_program(model, out)
        return None, {"difference": compare_program(model, out)}
    about: dict[str, Any] = {}
    kind = next(model.parameters()).dtype
    if kind.itemsize < 4:
        about["weights"] = f"float32, from {str(kind).removeprefix('torch.')}, for onnxruntime"
        model.float()
    exported = export_onnx(model, out)
    about["inputs"] = ", ".join(exported.inputs)
    if exported.longest is not None:
        about["longest"] = exported.longest
    return None, {**about, "difference": exported.difference}


def _next(out: str, opened: Opened, unlearned: bool) -> str:
    """Next command for a saved model."""
    if unlearned:
        return command(f"train --from {out} --data ...")
    if opened.model.config.does.writes and opened.tokenizer is not None:
        return command(f"generate {out} --prompt '...'")
    return command(f"show {out}")


def _machine(
    about: dict[str, Any], form: str, opened: Opened, written: Report | None
) -> dict[str, Any]:
    reports = {"read": opened.report, "written": written}
    tables = {k: None if r is None else dataclasses.asdict(r) for k, r in reports.items()}
    kind = None if opened.tokenizer is None else opened.tokenizer.kind
    return {**about, "to": form, "tokenizer": kind, "note": about.get("tokenizer"), **tables}
