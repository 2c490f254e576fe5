"""Options of a suite (plain data, no torch)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Affects, Count, Positive, Repeats, Whole
from everyformer.core.config import Options
from everyformer.lab.compare.config import Idle
from everyformer.lab.suites.presets import Preset


@dataclass(frozen=True)
class SuiteConfig(Options):
    """Members, probes, and what all trainings share."""

    members: tuple[str, ...] = ("attention", "linear", "aft-local")
    """members (`everyformer list`), and guests that are none: lstm, mamba2, gated_delta, and whole
    models as file.py:factory, module:factory, hf:KIND; board: one member for each mechanism, and
    those guests; one may be there again, as NAME@LABEL"""
    suite: tuple[str, ...] = ()
    """probes, or families of them as mad and state (default: all of the preset)"""
    preset: Preset = "mini"
    """settings of the probes: mini, seconds a training on one core; paper, as printed in papers"""
    seeds: Repeats = 3
    """trainings of each member on each probe, with the best of its learning rates"""
    seed: Whole = 0
    """the first of those seeds; a board by others says how far luck alone moves it"""
    times: Positive = 1.0
    """steps of every training, times this"""
    lr_grid: tuple[Positive, ...] = ()
    """learning rates tried with the first seed; the one with the least loss on the validation rows
    is kept (default: the preset's)"""
    threads: Annotated[Count, Affects("speed")] = 1
    """threads of a training"""
    jobs: Annotated[Count | None, Idle] = None
    """trainings at once (default: as many as there are cores for)"""
    launcher: Annotated[Literal["local", "ray"], Affects("speed")] = "local"
    """processes of this machine, or tasks of Ray, as in `compare`"""
    device: Annotated[str, Affects("speed")] = "cpu"
    """where the models are trained"""
    out: Annotated[str, Idle] = "runs/suite"
    """directory of board.csv, board.json, index.html, and a comparison for each probe"""
    resume: Annotated[bool, Idle] = False
    """continue the suite in that directory"""
    overwrite: Annotated[bool, Idle] = False
    """replace an earlier suite in that directory"""
