"""Third-party models next to members: file.py:factory, module:factory, hf:NAME.

What the factory takes of sizes is given to it (`sequence_laws.targets`), so that it is as wide
and deep as the members that it is compared with. A model of tokens gives logits at each position,
or hidden states, which then have an output layer here; one of features (B, L, width) stands where
the layers of a member would, in any task.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from everyformer.core.config import field_types
from everyformer.core.errors import ConfigError, GeneError, PluginError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import StackOutput
from everyformer.core.plugins import allowed_model
from everyformer.core.seeds import twin
from everyformer.core.state import StackState
from everyformer.genes.config import Architecture, ModelConfig
from sequence_laws.adapters.found import UnreadError
from sequence_laws.causality import glance
from sequence_laws.foreign import describe
from sequence_laws.subject import Subject
from sequence_laws.targets import target

INNER = tuple({*field_types(Architecture)} - {"width", "layers", "heads", "max_length", "causal"})
"""options of a model that are no sizes"""
_OF_LAYERS = frozenset({"block", "init", "layer_losses"})
"""those that speak of layers"""


def refuse(config: ModelConfig, meaningless: frozenset[str]) -> None:
    """Refuse options that are not as usual and have no meaning with a third-party model.

    Raises:
        GeneError: names the first.
    """
    usual, plain = Architecture(), dataclasses.replace(config, scale_embedding=None)
    for name in sorted(meaningless):
        if getattr(plain, name) != getattr(usual, name):
            raise GeneError(
                f"'{twin(config.member)[0]}' is a whole model, to which sizes are given alone: "
                f"`{name}` would change nothing in it, so choose it for members (in a comparison: "
                "--options MEMBER.OPTION=VALUE)"
            )


class Outside(nn.Module):
    """The module of a name, and how it is called.

    Raises:
        ConfigError: it cannot be made again for each seed, or reads another vocabulary or width.
        GeneError: it reads both ways where only the past is known, or the other way round.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.name = twin(config.member)[0]
        drawn = torch.get_rng_state()
        self.subject = outside_subject(config)
        torch.set_rng_state(drawn)
        if self.subject.make is None:
            raise ConfigError(
                f"'{self.name}' is one finished module, with the same weights for every seed: name "
                "a function or a class that makes it"
            )
        if self.subject.pools:
            raise self.subject.shape_error("one output a row, whatever its length")
        self.module = self.subject.model = self.subject.make()
        self.max_length = self.subject.max_length()
        if config.causal and not self.subject.causal:
            raise GeneError(f"'{self.name}' reads both ways: it cannot tell what comes next")

    @property
    def reads_tokens(self) -> bool:
        """True if it is given token ids."""
        return self.subject.inputs.vocabulary is not None

    @property
    def channels(self) -> int:
        """Channels of its outputs."""
        x = self.subject.inputs.draw(1, self.subject.usual())
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            return self.subject.run(self.module, x).shape[-1]

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """Outputs (B, L, channels) of tokens (B, L) or features (B, L, d)."""
        mask = mask or Mask()
        mask.require(self.name, frozenset({"padding_mask"}))
        padding_mask = mask.padding_mask
        if padding_mask is not None and not self.subject.masks:
            if not self.subject.causal or bool((padding_mask[:, 1:] & ~padding_mask[:, :-1]).any()):
                raise UnsupportedError(
                    f"'{self.name}' takes no mask, so that padding would be read: give its forward "
                    "a 'mask' (rows, positions), True at what is real"
                )
            padding_mask = None
        return self.subject.outputs(self.subject.call(self.module, x, padding_mask), x)

    def found_leak(self, length: int) -> str | None:
        """The place where it sees the future now, by a glance at a short length and at this one."""
        return glance(self.subject.again(), length) if self.subject.causal else None


def outside_subject(config: ModelConfig) -> Subject:
    """The subject of a config's model, of its sizes.

    Raises:
        PluginError: it fails as it reads. ConfigError: nothing says what it reads.
    """
    sizes = {
        "vocabulary": config.vocabulary,
        "width": config.width,
        "layers": config.layers,
        "heads": config.heads,
        "max_length": config.tokens,
    }
    name = allowed_model(str(config.outside))
    # classes of transformers know what they are; layers of torch are told by a mask
    try:
        return target(name, sizes, causal=None if name.startswith("hf:") else config.causal)
    except UnreadError as error:
        if error.first is not None:
            message = f"the model '{name}' fails as it reads: {describe(error.first)}"
            raise PluginError(message) from error
        raise ConfigError(
            f"what '{name}' reads is not known: it has neither an nn.Embedding of tokens nor a "
            "width, as an nn.Linear or an attribute 'width' of its own would tell"
        ) from error


class OutsideStack(nn.Module):
    """A model of features in the place of a stack of layers (`everyformer.blocks.stack.Stack`)."""

    mixers: Sequence[Mixer] = ()
    order: Sequence[int] = ()
    before = depth = lead = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        refuse(config, _OF_LAYERS)
        self.outside = Outside(config)
        width = self.outside.subject.inputs.width
        if self.outside.reads_tokens:
            raise UnsupportedError(
                f"'{self.outside.name}' reads token ids, so that it can learn to write (lm), not "
                f"{config.does.word}: one that reads features (rows, positions, width) can"
            )
        if width != config.width:
            raise ConfigError(
                f"'{self.outside.name}' reads {width} channels, but the width is {config.width}: "
                "let what makes it take `width`, which is given to it"
            )
        self.out_width = self.outside.channels

    @property
    def checkpointing(self) -> bool:
        """Never: what lies inside is not known."""
        return False

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        if on:
            raise ConfigError(
                f"`checkpoint_activations` is set, but '{self.outside.name}' has no layers known "
                "here: let it do that itself"
            )

    def init_state(self, batch_size: int, **where: object) -> StackState:
        """Raise: its cache, if it has one, is not known here."""
        raise UnsupportedError(f"'{self.outside.name}' is read whole: it has no state here")

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        exiting: object = None,
    ) -> StackOutput:
        """One pass over x (B, L, width)."""
        if state is not None or taps:
            raise UnsupportedError(f"'{self.outside.name}' is read whole, and from outside")
        return StackOutput(self.outside(x, mask), None, {}, {})
