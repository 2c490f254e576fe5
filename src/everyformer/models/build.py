"""`create_mixer` and `create_model`: from a member's name and loose options to a module."""

from typing import Any

from everyformer.core.bounds import Count
from everyformer.core.config import Choice, converted, from_dict, to_dict
from everyformer.core.errors import ConfigError, UnsupportedError, unknown
from everyformer.core.mixer import Mixer, set_options
from everyformer.core.plugins import allow_model
from everyformer.core.tasks import LM, TASKS, TEXT, tasks_called
from everyformer.family import info, list_members
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.mixers import MIXERS
from everyformer.models.base import Model
from everyformer.models.draft import Draft, completed, require_read
from everyformer.models.layers import decoder_config, encoder_config
from everyformer.system.claims import within_memory


def create_mixer(
    name: str,
    *,
    width: int,
    heads: int = 1,
    causal: bool = False,
    max_length: int | None = None,
    **options: Any,
) -> Mixer:
    """Build the mixer of a member by name.

    Args:
        name: a member marked as mixer (`everyformer list --mixers`), or any registered mixer.
        width: channels of x. heads: number of heads. causal: each token sees only the past.
        max_length: longest sequence, needed by members with a table over positions.
        options: the mixer's own options by name (`everyformer info NAME`); ``position``, a name or
            a `Position`, acts inside mixers that compare tokens, ``position_options`` are its own;
            ``memory``, a name, is read with the tokens, ``memory_options`` are its own.

    Raises:
        UnknownNameError, ConfigError, GeneError: with the nearest name, or both sides named.
    """
    mixers = [m.name for m in list_members() if m.is_mixer]
    if name not in MIXERS.names():
        if name in {m.name for m in list_members()}:
            raise UnsupportedError(
                f"member '{name}' is not a mixer but a choice of other genes: build it with "
                f"create_model('{name}'). Mixers: {', '.join(mixers)}"
            )
        raise unknown("mixer", name, MIXERS.names())
    cls: Any = MIXERS.get(name)
    parts = {name: _popped(options, name) for name, gene in GENES.items() if gene.in_mixers}
    heads = converted(Count, heads, "heads")
    width = converted(Count, width, "width")
    max_length = converted(Count | None, max_length, "max_length")
    causal = converted(bool, causal, "causal")
    checked = set_options(cls.Options, name, options)
    sizes = {"width": width, "heads": heads, "causal": causal, "max_length": max_length}
    inside = {
        gene: GENES[gene].build_standalone(part, cls, checked, sizes)
        if isinstance(part, Choice)
        else part
        for gene, part in parts.items()
        if part is not None
    }
    with within_memory(f"the mixer '{name}'"):
        return cls(options=checked, **sizes, **inside)


def _popped(options: dict[str, Any], gene: str) -> Any:
    """Value of a gene among ``options``: a `Choice` of name and options, a module, or None."""
    name, own = options.pop(gene, None), options.pop(f"{gene}_options", {})
    if isinstance(name, str):
        return Choice(name, own)
    if own:
        raise ConfigError(f"`{gene}_options` are read where `{gene}` is given as a name")
    return name


def create_model(name: str, task: str = LM, **options: Any) -> Model:
    """Build a member as a whole model.

    Args:
        name: a member (`list_members()`).
        task: a name in `core.tasks.TASKS`, or 'classify' or 'regress', whose options say what is
            read: ``image``, ``series``, the numbers at each step, else tokens.
        options: fields of `ModelConfig` (width, layers, heads, max_length, vocabulary ...), of
            `BlockOptions` (residual, feedforward, dropout ...), of the mixer, the position or the
            memory, by their names; ``by_layer(...)`` values differ by layer, a mixer
            ``by_head(...)`` by head.

    Raises:
        UnknownNameError, ConfigError, GeneError, UnsupportedError: what clashes with what, and why.
    """
    config = configure(name, task, **options)
    if config.outside is not None:
        allow_model(config.outside)
    return build_model(config)


def configure(name: str, task: str = LM, **options: Any) -> ModelConfig:
    """The complete config that `create_model` would build."""
    task = _task_called(task, options)
    draft = Draft.of(info(name), task)
    draft.put_all(options)
    fields = {"member": name, "task": task, "schedule": draft.schedule, **draft.fields}
    config = from_dict(ModelConfig, to_dict(fields | draft.genes))
    require_read(name, task, config)
    return completed(config)


def _task_called(word: str, options: dict[str, Any]) -> str:
    """The task that a word means (classify, regress), by what the options say is read."""
    called = tasks_called(word)
    if not called:
        raise unknown("task", word, [*TASKS, *(one.word for one in TASKS.values())])
    reads = "pictures" if options.get("image") else "series" if options.get("series") else ""
    fitting = (name for name in called if TASKS[name].reads == reads)
    return next(fitting, called[0])


def configure_layers(name: str, causal: bool, length: int, **options: Any) -> ModelConfig:
    """A config for `build_mixers`: the member's layers as they are for ``length`` tokens.

    The task is one in which the member's mixers are causal, or not, as given; of an
    encoder-decoder the layers are those of its decoder or encoder.
    """
    tasks = info(name).tasks
    task = LM if causal else TEXT
    if task not in tasks:
        task = next((name for name in tasks if TASKS[name].translates), tasks[0])
    sizes: dict[str, Any] = {"max_length": length, **options}
    if TASKS[task].translates:
        both = configure(name, task, **sizes)
        return decoder_config(both) if causal else encoder_config(both)
    if TASKS[task].pictures:
        sizes = {"image": (1, length, 1), "patch": 1, "pooling": "mean", **sizes}
    return configure(name, task, causal=causal, **sizes)


def build_model(config: ModelConfig) -> Model:
    """The module that a complete config describes."""
    with within_memory(f"the model '{config.member}'"):
        return config.does.build(config)
