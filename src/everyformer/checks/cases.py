"""Cases that the laws are tried on: each member, small, with the options of its `Trials`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.tasks import TASKS
from everyformer.core.trials import HEADS, LONGEST, WIDTH, OptionSets
from everyformer.genes import GENES
from everyformer.genes.positions import POSITIONS
from everyformer.models.base import Model
from everyformer.models.build import configure_layers, create_model
from everyformer.models.layers import build_mixers

LENGTHS = (1, 2, 7, 33)


@dataclass(frozen=True)
class Case:
    """One member, one choice of options, causal or not."""

    member: Member
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = True

    def __str__(self) -> str:
        chosen = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.member.name}({chosen}{', ' if chosen else ''}causal={self.causal})"

    @property
    def remembers(self) -> bool:
        """True if a memory carries something from segment to segment."""
        memory = self.member.genes["memory"].name
        return self.options.get("memory", memory) is not None

    def mixer(self, dtype: torch.dtype, device: str = "cpu", **more: Any) -> Mixer:
        """One mixer of the member with its position inside, weights drawn wide enough to matter."""
        sizes = {"width": WIDTH, "heads": HEADS, "layers": 1, "length": LONGEST, **more}
        config = configure_layers(self.member.name, self.causal, **self.options, **sizes)
        mixer = build_mixers(config)[0].to(device, dtype).eval()
        randomize_(mixer)
        return mixer


def cases(member: Member) -> Iterator[Case]:
    """Every variant of a member, causal and bidirectional where it can be."""
    variants: OptionSets = known(member, "variants") or ()
    if member.name == "attention":
        variants = (*variants, *_inside())
    forms = [(form == "causal", form) for form in ("causal", "bidirectional") if member.can(form)]
    for options in variants:
        for causal, _ in forms:
            yield Case(member, options, causal)
    for causal, form in forms:
        for options in known(member, form) or (() if variants else ({},)):
            yield Case(member, options, causal)


def known(member: Member, what: str) -> Any:
    """A field of `Trials`, of the first alternative that makes the member special and fills it."""
    for gene, name in special(member):
        if result := getattr(GENES[gene].alternatives.get(name).trials, what):
            return result
    return None


def special(member: Member) -> list[tuple[str, str]]:
    """Genes with alternatives whose trials a member takes: its own gene's, its memory's and its
    mixer's, of those that live inside a layer."""
    genes = [gene for gene in dict.fromkeys((member.gene, "memory")) if GENES[gene].in_mixers]
    chosen = [(gene, member.genes[gene].name) for gene in (*genes, "mixer")]
    return [(gene, name) for gene, name in chosen if name is not None]


def _inside() -> Iterator[Mapping[str, Any]]:
    """Positions inside softmax attention, with the options that each is tried beside."""
    for name in POSITIONS.own_names():
        for options in POSITIONS.get(name).trials.inside:
            yield {"position": name, **options}


def randomize_(module: nn.Module) -> None:
    """Give vectors and near-zero tables values that matter, so that no law holds by vacuity."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.dim() < 2 or float(parameter.detach().abs().max()) < 0.06:
            drawn = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.data.add_(drawn.to(parameter))


def draw(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> Tensor:
    """Standard normal numbers that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def small_model(
    member: Member, task: str | None = None, **more: Any
) -> tuple[Model, Tensor, Tensor]:
    """A two-layer model of the member with inputs and targets that fit it."""
    task = task or member.tasks[0]
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "layers": 2, "max_length": 16}
    sizes |= (known(member, "small") or {}).get(task, {}) | more
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (2, 12), generator=generator)
    does = TASKS[task]
    if does.pictures:
        sizes |= {"image": (1, 4, 4), "patch": 2, "classes": 3}
        pixels = torch.randint(0, 256, (2, 1, 4, 4), generator=generator).to(torch.uint8)
        targets = pixels.flatten(1).long()
        if does.answers:
            targets = torch.tensor([0, 2]) if does.classifies else torch.tensor([[0.5], [-2.0]])
        if does.encodes:
            sizes |= {"source_image": (1, 2, 2)}
            pixels = pixels[:, :, ::2, ::2]
        return create_model(member.name, task, **sizes), pixels, targets
    if does.acts:
        sizes["episodes"] = {"state": (3,), "actions": 5, "context": 4}
        states = draw(2, 4, 3, seed=1, dtype=torch.float32)
        return create_model(member.name, task, **sizes), states, tokens[:, :4] % 5
    targets = tokens.roll(-1, 1)
    if does.answers:
        targets = torch.tensor([0, 1]) if does.classifies else torch.tensor([[0.5], [-2.0]])
    if does.series:
        series = draw(2, 12, 3, seed=1, dtype=torch.float32)
        return create_model(member.name, task, series=3, **sizes), series, targets
    return create_model(member.name, task, vocabulary=50, **sizes), tokens, targets
