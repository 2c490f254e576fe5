"""Whatever can be converted, opened: its model, its tokenizer, the account of its tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everyformer.core.errors import CheckpointError, ConfigError, unknown
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.genes.mixers import MIXERS
from everyformer.lab.convert.checkpoint import (
    Imported,
    find_folder,
    import_checkpoint,
    read_config,
)
from everyformer.lab.convert.rules import Report
from everyformer.lab.convert.timm import import_timm
from everyformer.lab.convert.tokenizer import ReadTokenizer, import_tokenizer
from everyformer.models.base import Model
from everyformer.system.files import require_regular
from everyformer.training.saved import load_model
from everyformer.training.storage import MODEL_FORMAT, RUN_FORMAT, check_finite
from everyformer.training.warmstart import read_start

OURS = {RUN_FORMAT: "a run of everyformer", MODEL_FORMAT: "a saved model of everyformer"}
WRAPPED = "everyformer"
"""transformers' ``model_type`` of our models in its clothes"""


class ModelSource(NamedTuple):
    """A folder that a model can be read from."""

    folder: Path
    what: str
    """for people"""
    kind: str
    """'ours', where this library made it and there is nothing to import; 'timm'; or transformers'
    ``model_type``"""

    @property
    def ours(self) -> bool:
        """True if this library made it."""
        return self.kind == "ours"


class Opened(NamedTuple):
    """An opened source: its model, its tokenizer, the account of its tensors."""

    model: Model
    report: Report | None
    """every tensor accounted for; None where it is ours"""
    tokenizer: Tokenizer | None
    note: str
    """what the tokenizer is, or why there is none; empty for models that read no text"""
    known: Mapping[str, Any] = {}
    """``classes`` and ``step`` of `save_model`, as far as they are known"""


def find_source(name: str) -> ModelSource:
    """The source in a folder, or under a name on the Hugging Face hub, by its config.json.

    Raises:
        CheckpointError: nothing is there, or nothing that is known.
    """
    folder = find_folder(name)
    for path in folder.iterdir():
        if not path.is_dir():
            require_regular(path)
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} holds no config.json: give a folder saved by transformers, a run of "
            "`everyformer train`, or a folder saved by ef.save"
        )
    values = read_config(folder)
    form = values.get("format")
    if isinstance(form, str) and form in OURS:
        return ModelSource(folder, OURS[form], "ours")
    if "model_type" in values:
        kind = values["model_type"]
        return ModelSource(folder, f"a checkpoint of transformers ({kind})", kind)
    if "architecture" not in values:
        raise CheckpointError(
            f"{folder / 'config.json'} names no model_type, so it is no checkpoint of "
            "transformers, and it was not written by everyformer"
        )
    return ModelSource(folder, f"a checkpoint of timm ({values['architecture']})", "timm")


def open_source(
    source: ModelSource, *, mixer: str | None = None, average: int | None = None
) -> Opened:
    """A source's model in evaluation mode, and its tokenizer.

    Args:
        mixer: takes the place of attention in an imported checkpoint.
        average: of a run, take the mean of so many of its newest checkpoints.

    Raises:
        ConfigError: an option that this source cannot take.
        CheckpointError, UnsupportedError: as `import_checkpoint` and `load_model`.
        DivergedError: weights that are not finite.
    """
    folder, kind = source.folder, source.kind
    if mixer is not None and mixer not in MIXERS.names():
        raise unknown("mixer", mixer, MIXERS.names())
    if mixer is not None and kind in ("ours", "timm", WRAPPED):
        raise ConfigError(
            f"{folder} is {source.what}, and `mixer` is for attention of checkpoints of "
            "transformers: a model of everyformer with another mixer is trained, beginning with "
            "what both share, by everyformer train MEMBER --from"
        )
    if average is not None and not source.ours:
        raise ConfigError(f"{folder} is {source.what}: there are no checkpoints to average")
    if source.ours:
        model = load_model(folder, average=average)
        assert isinstance(model, Model)
        check_finite(model, folder)
        start = read_start(folder)
        tokenizer, facts = start.tokenizer, start.values.get("data", {})
        known = {name: facts[name] for name in ("classes", "step") if facts.get(name)}
        note = "none is saved with it" if tokenizer is None else str(tokenizer)
        note = note if model.config.does.reads_text else ""
        return Opened(model, None, tokenizer, note, known)
    if kind == "timm":
        model, report = import_timm(folder)
    elif kind == WRAPPED:
        model, report = _unwrapped(folder)
    else:
        model, report = import_checkpoint(folder, mixer=mixer)
    check_finite(model, folder)
    result = ReadTokenizer(None, "")
    if model.config.does.reads_text:
        result = import_tokenizer(folder, model.config.vocabulary)
    return Opened(model, report, *result)


def _unwrapped(folder: Path) -> Imported:
    """Our model out of a folder that `EveryformerForCausalLM` saved."""
    from everyformer.interop.hf import EveryformerForCausalLM

    try:
        loaded: Any = EveryformerForCausalLM.from_pretrained(
            folder, output_loading_info=True, use_safetensors=True
        )
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {str(error).splitlines()[0]}") from error
    wrapped, loading = loaded
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise CheckpointError(f"the checkpoint lacks {', '.join(missing[:5])}: it is cut short")
    report = Report(list(wrapped.model.state_dict()), left=sorted(loading["unexpected_keys"]))
    return Imported(wrapped.model.eval(), report)
