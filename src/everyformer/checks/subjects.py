"""Mixers and whole models of everyformer: a `Mask`, and a `State` that goes on."""

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.tasks import TASKS
from sequence_laws.inputs import Inputs
from sequence_laws.subject import Subject


class Ours(Subject):
    """A module that takes a `Mask` and a state, which can be reordered."""

    masks = ("right", "left", "holes")
    packs = "documents"
    feeds_masks = True

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        self.build = ("import everyformer as ef", *self.build)

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """One pass."""
        padding_mask = self.real(x, padding_mask)
        return model(x, mask=None if padding_mask is None else Mask(padding_mask=padding_mask))

    def packed(self, model: nn.Module, x: Tensor, documents: Tensor) -> Any:
        """One pass over rows of several documents."""
        return model(x, mask=Mask(documents=documents))

    def packed_code(self) -> str:
        """The Python of it."""
        return f"model(x, mask=ef.Mask(documents=documents)){self.place}"

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of `run`."""
        padding_mask = self.real_code(x, padding_mask)
        given = "" if padding_mask is None else f", mask=ef.Mask(padding_mask={padding_mask})"
        return f"model({x}{given}){self.place}"

    @abstractmethod
    def feed(
        self, model: Any, x: Tensor, cache: Any, mask: Mask | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs of the next tokens, of which a mask may be given, and the state behind them."""

    def feed_masked(
        self, model: nn.Module, x: Tensor, cache: Any, padding_mask: Tensor
    ) -> tuple[Tensor, Any]:
        """As `feed`, with a mask of the new tokens."""
        return self.feed(model, x, cache, Mask(padding_mask=padding_mask[:, -x.shape[1] :]))

    def feed_masked_code(self) -> list[str]:
        """The Python of it."""
        mask = "mask=ef.Mask(padding_mask=padding_mask[:, -x.shape[1]:])"
        return [
            line.replace("feed(x, state)", "feed(x, state, padding_mask)").replace(
                "model(x,", f"model(x, {mask},"
            )
            for line in self.feed_code()
        ]

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """The state of the rows in another order."""
        return cache.reorder(rows)

    def reset(self, cache: Any, rows: Tensor) -> Any:
        """The state, in which some rows start over."""
        return cache.reset(rows)

    def rows_code(self, cache: Any) -> list[str]:
        """The Python of it."""
        return ["cache = cache.reorder(rows)"]


class MemberMixer(Ours):
    """A mixer, which streams where it `continues`."""

    @property
    def streams(self) -> bool:  # type: ignore[override]
        """True if it has an exact state."""
        return bool(getattr(self.model, "continues", False))

    def feed(
        self, model: Any, x: Tensor, cache: Any, mask: Mask | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs, and the state behind them."""
        state = model.init_state(len(x)) if cache is None else cache
        y, state, _ = model(x, state=state, mask=mask)
        return y, state

    def counted(self, cache: Any) -> list[int]:
        """Tokens that the state has seen."""
        seen: list[int] = cache.num_tokens.tolist()
        return seen

    def feed_code(self) -> list[str]:
        """The Python of it."""
        return [
            "def feed(x, state):",
            "    y, state, _ = model(x, state=state or model.init_state(len(x)))",
            "    return y, state",
        ]


class WholeModel(Ours):
    """A model of texts, which streams where all its layers do."""

    label_word = "targets"
    loss_place = ".losses['task']"

    @property
    def streams(self) -> bool:  # type: ignore[override]
        """True if it has an exact state."""
        model: Any = self.model
        try:
            model.init_state(1)
        except UnsupportedError:
            return False
        return True

    def feed(
        self, model: Any, x: Tensor, cache: Any, mask: Mask | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs, and the state behind them."""
        state = model.init_state(len(x)) if cache is None else cache
        out = model(x, state=state, mask=mask)
        return out.logits, out.state

    def feed_code(self) -> list[str]:
        """The Python of it."""
        return [
            "def feed(x, state):",
            "    out = model(x, state=state or model.init_state(len(x)))",
            "    return out.logits, out.state",
        ]

    def loss(
        self,
        model: nn.Module,
        x: Tensor,
        labels: Tensor,
        padding_mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The task's, since others are means over all tokens."""
        mask = Mask(padding_mask=padding_mask, documents=documents)
        loss: Tensor = model(x, targets=labels, mask=mask).losses["task"]
        return loss


def subject(model: nn.Module, name: str, **known: Any) -> Subject | None:
    """The subject of a mixer of everyformer, or of a whole model of it that reads texts.

    Raises:
        ConfigError: it is of a task that reads something else.
    """
    if isinstance(model, Mixer):
        known["causal"] = model.causal
        return MemberMixer(model, name, Inputs(width=model.width), place=".y", **known)
    config: Any = getattr(model, "config", None)
    if not hasattr(model, "term_counts") or getattr(config, "task", None) not in TASKS:
        return None
    task = TASKS[config.task]
    if not task.embeds_text:
        raise ConfigError(
            f"{name} is a model of the task '{task.name}' ({task.about}): these laws need one that "
            "reads one text; everyformer verify NAME tries the laws of a member's mixer"
        )
    known["causal"] = task.forward_only
    reads = Inputs(vocabulary=config.vocabulary)
    return WholeModel(model, name, reads, place=".logits", **known)
