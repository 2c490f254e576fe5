"""Options of a comparison: members, data, and what is held equal (plain data, no torch)."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from everyformer.core.bounds import Affects, Count, Positive, Repeats, Several
from everyformer.core.config import Choice, NoOptions, Options
from everyformer.core.errors import ConfigError
from everyformer.data.config import DataConfig
from everyformer.genes import GENES
from everyformer.genes.config import Architecture
from everyformer.training.config import TrainingConfig

OWN = "member"
"""for a gene: each member has its own"""
FIRST_LOOK = 3
"""seeds at least after which a comparison with more to come is judged"""


def own_genes() -> dict[str, Choice]:
    """Every gene left to each member, a choice of its own each."""
    return {name: Choice(OWN, NoOptions()) for name in GENES}


Idle = Affects("nothing")
"""no result depends on it, so that it may change when a comparison goes on"""


@dataclass(frozen=True)
class CompareConfig(Options):
    """Every member gets the same data, tokens, seeds, sizes and budget."""

    choices_in: ClassVar[str | None] = "genes"

    members: tuple[str, ...] = ("attention", "aft-local", "gmlp")
    """members to compare (`everyformer list`), and whole models that are none: file.py:factory,
    module:factory, hf:KIND; one may be there again, as NAME@LABEL"""
    task: str | None = None
    """lm, mlm, seq2seq, pixels or super-resolution; classify or regress, of what the data holds:
    text, images or series (default: what the data suggests, of what all members can do)"""
    data: DataConfig = field(default_factory=DataConfig)
    """the same data for all"""
    genes: dict[str, Choice] = field(default_factory=own_genes)
    """what stands for a gene in all of them; 'member' leaves each member its own"""
    model: Annotated[dict[str, Any], Architecture] = field(default_factory=dict)
    """the same for all: width, layers, heads, and what else of a model is given here; the rest each
    member has as in its own row"""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(budget_seconds=60.0, checkpoint_every=None)
    )
    """the same budget and optimiser for all; one in seconds is turned into steps of each member, by
    its share of the fastest of several rounds in which all are timed in turn"""
    options: tuple[str, ...] = ()
    """a member's own options, as member.option=value (aft-local.window=64)"""
    seeds: Repeats = 1
    """trainings of each member, with this many seeds from `training.seed` on"""
    until_settled: Several | None = None
    """the most seeds: after --seeds of them (at least 3), and each time that they have doubled,
    those that share the first tier get more, until the winner is settled, they are shown to be
    within --margin, or so many are spent"""
    margin: Positive | None = None
    """with --until-settled: a difference, in the metric of the table (0.01 of accuracy is a point),
    below which members are as good as equal"""
    power: Annotated[Positive | None, Idle] = None
    """a difference that matters, in the metric of the table: how many seeds it takes to see it in 8
    of 10 comparisons is reported with the result"""
    match: Literal["width", "parameters"] = "width"
    """what is equal: width, or parameters to within 10% of the first member's"""
    lr_grid: tuple[Positive, ...] = ()
    """learning rates tried for each member with the first seed; the best one is kept"""
    lengths: Annotated[tuple[Count, ...], Idle] = (256, 512, 1024, 2048)
    """lengths at which time and memory of one layer are measured; none given skips it"""
    decode: Annotated[tuple[Count, ...] | None, Idle] = None
    """tasks that write texts: tokens before the one whose time, and whose memory of the text, are
    measured (default: 64, 1024, and the --length of the texts if that is longer, up to 16384)"""
    launcher: Annotated[Literal["local", "ray"], Affects("speed")] = "local"
    """one training after the other here, or side by side as tasks of Ray, in the cluster that the
    variable RAY_ADDRESS names or that runs here, or else one of this machine; each with
    `training.threads` cores (none: as many as torch takes here)"""
    out: Annotated[str, Idle] = "runs/compare"
    """directory of results.json, results.csv, report.html and the runs"""
    resume: Annotated[bool, Idle] = False
    """continue the comparison in that directory"""
    overwrite: Annotated[bool, Idle] = False
    """replace an earlier comparison in that directory"""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {size: getattr(Architecture, size) for size in ("width", "layers", "heads")}
        object.__setattr__(self, "model", sizes | self.model)
        typed = {
            name: Choice(OWN, NoOptions()) if choice.name == OWN else GENES[name].typed(choice)
            for name, choice in self.genes.items()
        }
        object.__setattr__(self, "genes", typed)
        if not self.members:
            raise ConfigError("name at least one member to compare")
        doubled = {m for m in self.members if self.members.count(m) > 1}
        if doubled:
            raise ConfigError(f"members named twice: {', '.join(sorted(doubled))}")
        if self.resume and self.overwrite:
            raise ConfigError("resume and overwrite contradict each other: give one of them")

    @property
    def looks(self) -> tuple[int, ...]:
        """Seeds after which it is judged, the last the most that there may be; () where their
        number is fixed."""
        if self.until_settled is None:
            return ()
        looks = [max(self.seeds, min(FIRST_LOOK, self.until_settled))]
        while looks[-1] < self.until_settled:
            looks.append(min(2 * looks[-1], self.until_settled))
        return tuple(looks)

    @property
    def first_seeds(self) -> int:
        """Seeds that all members have."""
        return self.looks[0] if self.looks else self.seeds
