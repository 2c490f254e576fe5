"""Options of a training: one dataclass for Python, flags and files alike (torch stays out)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from everyformer.core.bounds import (
    Amount,
    Between,
    Count,
    Positive,
    Rate,
    Seed,
    Share,
    Threads,
    When,
)
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.core.tasks import Task

BUDGETS = ("seconds", "tokens", "flops")
Precision = Literal["float32", "bfloat16", "auto"]
Parallel = Literal["ddp", "fsdp", "hybrid"]
STEPS = 1000
"""of a training whose budget is not said"""


@dataclass(frozen=True)
class TrainingConfig(Options):
    """Budget, optimiser, schedule, precision and the rhythm of a training run."""

    one_of: ClassVar[tuple[str, ...]] = ("steps", *(f"budget_{kind}" for kind in BUDGETS))

    steps: Count | None = None
    """optimiser steps (default: 1,000, where none of the three budgets below is given instead)"""
    budget_seconds: Positive | None = None
    """train for so many seconds (evaluations and saving not counted) instead of `steps`"""
    budget_tokens: Positive | None = None
    """train on so many token positions instead of `steps`"""
    budget_flops: Positive | None = None
    """train for so many floating-point operations (forward and backward) instead of `steps`"""
    batch: Count = 16
    """sequences an optimiser step, over all processes and slices together"""
    accumulate: Count = 1
    """slices a batch is worked through in, to save memory; the gradient stays the same"""
    lr: Positive = 1e-3
    """peak learning rate"""
    schedule: Literal["cosine", "linear", "noam", "constant"] = "cosine"
    """how the learning rate falls after the warm-up; noam falls as one over the square root of the
    step: lr(step) = lr * min(step / W, sqrt(W / step)), W being `warmup_steps`"""
    min_lr_ratio: Annotated[Share, When("schedule", "cosine", "linear", "constant")] = 0.1
    """where the warm-up starts and the schedule ends, as a fraction of `lr` (noam has no floor)"""
    warmup: Share = 0.05
    """fraction of the budget over which the learning rate rises"""
    warmup_steps: Count | None = None
    """of schedule noam: steps of the warm-up instead of a fraction (the paper: 4000, and `lr` is
    then 1 / sqrt(width * 4000))"""
    stages: tuple[Positive, ...] = ()
    """lm: parts of the budget, as 430 50 50 35 5 in the paper of Longformer; in each texts, and the
    windows of longformer, are twice as long as before, at last their own, the rate half as high"""
    weight_decay: Amount = 0.1
    """AdamW's decay of weights with two or more dimensions (not of biases, norms, tables)"""
    betas: tuple[Rate, Rate] = (0.9, 0.95)
    """AdamW's decay rates of the mean gradient and of its square"""
    eps: Positive = 1e-8
    """AdamW's term in the denominator"""
    clip: Positive | None = 1.0
    """largest norm of the whole gradient; none leaves it as it is"""
    class_weights: Literal["balanced"] | None = None
    """tasks that classify: balanced weighs the loss of a row by rows / (classes * rows of its
    class), counted over the training part, so that rare classes count as much as common ones;
    evaluations weigh nothing"""
    precision: Precision = "float32"
    """bfloat16 computes under autocast; weights and optimiser stay as the model holds them. auto
    times a few steps of both before the run, on a copy of the model, and says which is the faster
    here; a resumed run goes on in the same"""
    compile: bool = False
    """compile the model with torch.compile; the time that takes counts in `budget_seconds`"""
    checkpoint_activations: bool = False
    """recompute each block in the backward pass: less memory, about a third more time"""
    ema: Between | None = None
    """decay of a running average of the weights, used for evaluation and by load; none is off"""
    evaluate_every: Count | None = 100
    """steps between evaluations; none evaluates at the end alone"""
    evaluate_sequences: Count | None = 256
    """validation sequences an evaluation reads; none reads all"""
    stop_at: Share | None = None
    """accuracy of an evaluation at which the run ends before its budget is spent; none spends it"""
    checkpoint_every: Count | None = 500
    """steps between checkpoints; none saves at the best evaluations, a stop and the end"""
    keep: Count = 2
    """newest checkpoints that stay, beside the best: `load` and `eval` can average them"""
    log_every: Count = 10
    """steps between rows of metrics.jsonl"""
    parallel: Parallel = "ddp"
    """what several processes (torchrun) share of the training: ddp, the rows of a batch; fsdp, the
    weights, gradients and moments too; hybrid, those within groups, each of which holds a copy"""
    shards: Annotated[Count | None, When("parallel", "hybrid")] = None
    """processes that hold one copy of the weights between them; none: those of one machine"""
    seed: Seed = 0
    """of the data's order and of dropout: a step's randomness follows from seed and step alone (of
    several processes, on CPUs)"""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps ...; auto takes an accelerator where there is one"""
    threads: Threads | None = None
    """CPU threads of torch; none leaves torch's own choice"""

    def __post_init__(self) -> None:
        super().__post_init__()
        budgets = [name for name in self.one_of if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise ConfigError(
                f"`{budgets[0]}` and `{budgets[1]}` are both given, but a run ends by one budget: "
                "leave one of them out"
            )
        if not budgets:
            object.__setattr__(self, "steps", STEPS)
        if self.warmup_steps is not None and self.schedule != "noam":
            raise ConfigError(
                f"`warmup_steps` counts the steps of schedule noam, but `schedule` is "
                f"{self.schedule}: give `warmup`, a fraction of the budget"
            )
        if self.schedule == "noam" and self.warmup_steps is None and self.budget[0] != "steps":
            raise ConfigError(
                f"schedule noam counts steps, but the budget is in {self.budget[0]}: give "
                "`warmup_steps`"
            )
        if self.compile and self.parallel != "ddp":
            raise ConfigError(
                f"`compile` goes with `parallel` ddp alone, not {self.parallel}, in which layers "
                "speak to other processes as they run: leave one of them out"
            )
        if self.stop_at is not None and self.evaluate_every is None:
            raise ConfigError(
                f"`stop_at` ({self.stop_at}) is an accuracy of evaluations, but `evaluate_every` "
                "is none: give the steps between them"
            )
        if self.accumulate > self.batch:
            raise ConfigError(
                f"`accumulate` ({self.accumulate}) is more than `batch` ({self.batch}), but a "
                "batch cannot be cut into more slices than it has sequences"
            )

    def check_task(self, task: Task) -> None:
        """Refuse what has no meaning for a task.

        Raises:
            ConfigError: weights of classes where none are predicted.
        """
        if self.class_weights is not None and not task.classifies:
            raise ConfigError(
                f"`class_weights` is {self.class_weights}, but the task {task.name} predicts no "
                "classes: leave it out, or classify"
            )
        if self.stop_at is not None and task.predicts == "number":
            raise ConfigError(
                f"`stop_at` ({self.stop_at}) is an accuracy, but the task {task.name} predicts "
                "numbers: leave it out"
            )

    @property
    def budget(self) -> tuple[Literal["steps", "seconds", "tokens", "flops"], float]:
        """End of the run: what is counted, and how much of it there is."""
        for kind in ("seconds", "tokens", "flops"):
            amount = getattr(self, f"budget_{kind}")
            if amount is not None:
                return kind, amount
        assert self.steps is not None
        return "steps", self.steps

    @property
    def budget_words(self) -> str:
        """The budget in words: 1 step, 20 seconds."""
        kind, amount = self.budget
        return f"{amount:,.6g} {kind if amount != 1 else kind[:-1]}"

    @property
    def noam_steps(self) -> int:
        """Steps over which schedule noam rises, at least one."""
        return self.warmup_steps or max(1, round(self.warmup * (self.steps or 0)))
