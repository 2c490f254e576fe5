"""`train`: steps, evaluations and checkpoints until the budget is spent, a stop, or a divergence.

Whatever a step does follows from the weights, the optimiser's state, the seed and the step's
number. So a run that was stopped or killed and then resumed writes the same numbers, bit for bit on
the same CPU and threads, as one that was not (with ``budget_seconds`` the clock has its say too).
"""

import math
import shlex
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from everyformer.core.config import Options
from everyformer.core.errors import UnsupportedError
from everyformer.core.plugins import command
from everyformer.core.twins import seed_of
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.system.signals import GracefulStop
from everyformer.system.status import status
from everyformer.training.checkpoint import CheckpointParts, TrainingState
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate, in_words
from everyformer.training.footprint import check_footprint
from everyformer.training.operations import Operations
from everyformer.training.optimiser import (
    WeightAverage,
    build_optimiser,
    check_known,
    clip_gradients,
    copy_weights,
    set_learning_rate,
)
from everyformer.training.parallel.world import World, join
from everyformer.training.precision import decide
from everyformer.training.progress import Part, Progress
from everyformer.training.result import TrainResult, peak_rss
from everyformer.training.run import Records, RunDirectory, describe_run
from everyformer.training.schedule import check_stages, learning_rate, narrowed, pieces_of
from everyformer.training.speed import Speed
from everyformer.training.step import (
    Backward,
    backward,
    carry_of,
    checkpoint_activations,
    count_operations,
    positions,
    seed_step,
    weigh_classes,
)

WARM_UP_STEPS = 3
"""first steps of a session, not counted in its speed: memory is claimed and code compiled"""


def train(
    model: nn.Module,
    dataset: Dataset,
    config: TrainingConfig,
    run: RunDirectory | None = None,
    *,
    resume: bool = False,
    extra_config: dict[str, Any] | None = None,
    show: bool = True,
    part: Part | None = None,
    warm_up: int = WARM_UP_STEPS,
) -> TrainResult:
    """Train ``model`` in place; at the end it has the averaged weights if ``config.ema`` is set.

    Args:
        run: where curves and checkpoints go; None keeps nothing.
        resume: go on from the newest checkpoint of ``run`` that is whole (from the start if none
            was saved yet). Model and data must be those of the run.
        extra_config: further entries of the run's config.json.
        show: progress on stderr.
        part: what the run is of a larger work, whose progress is shown too.
        warm_up: first steps that are not counted in its speed.

    Raises:
        DivergedError: the loss or the gradient is not finite; the last checkpoint stays.
        CheckpointError: nothing fits to resume from, or a checkpoint cannot be written.
        ConfigError: options that do not go together or with this machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    was_training = model.training
    try:
        with join(config.device) as joined, GracefulStop() as stop:
            world = replace(joined, parallel=config.parallel, shards=config.shards)
            job = _Job(model, dataset, config, world, run, stop, show, warm_up)
            job.look(resume, extra_config or {}, part)
            try:
                job.begin()
                job.work()
            finally:
                job.close()
            return job.result()
    finally:
        model.train(was_training)
        torch.set_num_threads(threads)


class _Job:
    """One session of a run."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        config: TrainingConfig,
        world: World,
        run: RunDirectory | None,
        stop: GracefulStop,
        show: bool,
        warm_up: int,
    ) -> None:
        check_stages(config.stages, model, dataset)
        weigh_classes(model, dataset, config)
        check_footprint(model, dataset, config, world)
        self.model, self.dataset, self.config = model, dataset, config
        known: Any = getattr(model, "config", None)
        # the order of the data is that of all, what is dropped that of a twin
        self.seed = seed_of(config.seed, getattr(known, "member", ""))
        self.pieces = 1
        self.world, self.stop = world, stop
        self.records = Records(run, world)
        self.model.to(world.device).train()
        if config.checkpoint_activations:
            checkpoint_activations(model)
        self.carry = carry_of(model, dataset, world)
        self.state = TrainingState()
        self.show, self.warm_up = show and world.first, warm_up
        self.signal: int | None = None

    def look(self, resume: bool, extra: dict[str, Any], part: Part | None) -> None:
        """Find what there is to resume, and begin to tell of it."""
        records = self.records
        self.values = values = describe_run(self.model, self.dataset, self.config) | extra
        if resume:
            config: Any = getattr(self.model, "config", None)
            kind = type(config) if isinstance(config, Options) else Options
            records.find(self.state, values, kind)
        self.speed = Speed(self.state, self.warm_up)
        timed = records.path is None and self.config.budget[0] != "flops"
        self.operations = Operations(self.state, carried=self.carry is not None, timed=timed)
        label = records.name or self.dataset.name
        self.progress = Progress(label, self._done(), part=part, show=self.show)
        # what is part of a comparison continues it, and another program has words of its own
        self.again: str | None = None
        if records.path is not None and part is None and "run" in extra:
            self.again = command(f"train --resume --out {shlex.quote(str(records.path))}")

    def begin(self) -> None:
        """Fill the model, wrap it, open the files and make ready for steps."""
        records = self.records
        steps, spent = self.state.steps, self._done() >= 1
        changed = "; ".join(records.changed)
        if changed and not spent:
            self.progress.say(f"changed since the run began: {changed}")
        self._take_over()
        records.fill_model(self.model)
        with status("timing steps in float32 and bfloat16"):
            self.precision = decide(
                self.config, self.state, self.model, lambda: self._rows(0), self.world,
                self._backward_of, self.progress.say,
            )  # fmt: skip
        # from here on weights may be split, and other tensors
        self.module = self.world.wrap(self.model)
        self.optimiser = build_optimiser(self.model, self.config)
        self.average = (
            None if self.config.ema is None else WeightAverage(self.model, self.config.ema)
        )
        self.parts = CheckpointParts(self.model, self.optimiser, self.average, self.carry)
        records.fill(self.parts)
        records.open(self.state, self.values, described=spent)
        self.plain = self._backward_of(self.module)
        compiled = self._backward_of(torch.compile(self.module)) if self.config.compile else None
        self.backward = compiled or self.plain
        if spent:
            kept = f", and what is new is not kept: {changed}" if changed else ""
            self.progress.say(f"trained for {steps} steps, so nothing is left to train{kept}")
            return
        at = f", going on from step {steps}" if steps else ""
        self.progress.say(f"training for {self.config.budget_words} on {self.world.device}{at}")

    def _take_over(self) -> None:
        """Note how many processes train from here on, and say so where they were others before."""
        before, now = self.state.processes, self.world.size
        if self.state.steps and before != now:
            changes = self.world.device.type != "cpu"
            self.progress.say(
                f"trained by {before} at a time until here, by {now} from here on: rows stay the "
                f"same{', what is dropped or drawn in a step does not' if changes else ''}"
            )
        self.state.processes = now

    def work(self) -> None:
        """Step until the budget is spent or a stop is asked for."""
        while True:
            if self._should_stop():
                self._save()
                self.records.finish()
                hint = f"; continue with: {self.again}" if self.again else ""
                self.progress.say(f"stopped after step {self.state.steps}{hint}")
                return
            if not self._milestone():
                continue
            if self._done() >= 1:
                break
            self._step()
        if self.average is not None:
            copy_weights(self.model, self.average.values)

    def close(self) -> None:
        """Let go of files and of what was opened."""
        self.progress.close()
        self.records.close()

    def result(self) -> TrainResult:
        """The result of this run."""
        state, speed = self.state, self.speed
        return TrainResult(
            steps=state.steps,
            tokens=state.tokens,
            seconds=state.seconds,
            flops=state.flops,
            tokens_per_second=speed.tokens_per_second,
            evaluation=state.evaluation if state.evaluated else None,
            best=state.best,
            peak_rss=peak_rss(),
            precision=self.precision,
            path=self.records.path,
            signal=self.signal,
            left_out=speed.left_out,
            timed=speed.timed,
        )

    def _step(self) -> None:
        start, cpu_start = time.perf_counter(), time.process_time()
        state, config = self.state, self.config
        batch = self._staged(self._rows(state.steps))
        seed_step(self.seed, state.steps + 1, self.world.rank)
        lr = learning_rate(config, self._done(), state.steps + 1)
        set_learning_rate(self.optimiser, lr)
        self.optimiser.zero_grad()
        report: Any = getattr(self.model, "set_progress", None)
        if report is not None:
            report(self._done())
        first, counted = not state.flops_per_position, self.operations.due(batch)
        with narrowed(self.model, self.pieces):
            losses = self._gradient(batch, counted)
        norm = clip_gradients(self.model.parameters(), config.clip)
        self.records.check_finite(
            {**losses, "norm of the gradient": norm}, f"in step {state.steps + 1}"
        )
        self.optimiser.step()
        settle: Any = getattr(self.model, "end_step", None)
        if settle is not None:
            settle()
        if self.average is not None:
            self.average.update(self.model)
        state.steps += 1
        elapsed = time.perf_counter() - start if self.world.first else 0.0
        own = positions(self.model, batch)
        every, seconds = self.world.sum([own, elapsed])
        tokens = round(every)
        state.tokens += tokens
        state.flops += self.operations.of(batch, tokens)
        state.seconds += seconds
        if counted and not first:
            self.speed.leave_out(tokens, seconds)
        cpu_seconds = time.process_time() - cpu_start
        if state.steps % config.log_every == 0 or state.steps == 1 or self._done() >= 1:
            self._report(losses, lr, norm)
        self.speed.stepped(cpu_seconds, ended=self._done() >= 1)
        self.progress.update(self._done(), state.steps, losses["task"], self.speed.reported)

    def _rows(self, step: int) -> Batch:
        """This process's rows of a step."""
        rows, carry = (step, self.config.batch, self.config.seed, self.world.own), self.carry
        if carry is None:
            return self.dataset.train_batch(*rows)
        return carry.batch(self.dataset, *rows)

    def _staged(self, batch: Batch) -> Batch:
        """The batch as the stage reads it."""
        self.pieces = pieces_of(self.config.stages, self._done())
        return batch if self.pieces == 1 else batch.folded(self.pieces)

    def _backward_of(self, module: Any) -> Backward:
        """The gradient of a batch in the parameters of a module, and its losses by name."""
        return partial(backward, module, world=self.world)

    def _gradient(self, batch: Batch, count: bool) -> dict[str, float]:
        """The gradient in the parameters; whether operations are counted, too."""
        options: dict[str, Any] = {"slices": self.config.accumulate, "precision": self.precision}
        if self.carry is not None:
            options["carry"] = self.carry
        if not count:
            return self.backward(batch, **options)
        losses, counted = count_operations(
            self.model, batch, self.world, lambda: self.plain(batch, **options)
        )
        check_known(self.model, self.optimiser)
        if counted == 0 and self.config.budget[0] == "flops":
            raise UnsupportedError(
                "torch counts no operations in this model, so `budget_flops` would never be "
                "spent: give `budget_seconds` or `budget_tokens` instead"
            )
        self.operations.note(batch, counted)
        return losses

    def _report(self, losses: dict[str, float], lr: float, norm: float) -> None:
        state = self.state
        terms = {name: loss for name, loss in losses.items() if name != "task"}
        row = {
            "step": state.steps,
            "tokens": state.tokens,
            "flops": state.flops,
            "seconds": state.seconds,
            "loss": losses["task"],
            **({"losses": terms} if terms else {}),
            "lr": lr,
            "grad_norm": norm,
            "tokens_per_second": self.speed.report(),
        }
        self.records.write(row)
        state.logged = state.steps

    def _milestone(self) -> bool:
        """Save and evaluate where they are due; False if a stop cut the evaluation off."""
        state, config, ended = self.state, self.config, self._done() >= 1
        evaluates = not state.evaluated and (ended or _due(state.steps, config.evaluate_every))
        saves = ended or _due(state.steps, config.checkpoint_every)
        if saves:
            # before the evaluation, which may take long or fail; one more until it has succeeded
            self._save(config.keep + evaluates, last=ended)
        if not evaluates:
            return True
        result = self._evaluate()
        if result is None:
            return False
        state.evaluation = {"step": state.steps, **result}
        better = state.best is None or result["loss"] < state.best["loss"]
        state.best = state.evaluation if better else state.best
        if saves or better:
            self._save()
        return True

    def _save(self, keep: int | None = None, last: bool = False) -> None:
        self.records.save(self.state, self.parts, keep or self.config.keep, last=last)

    def _evaluate(self) -> dict[str, Any] | None:
        config = self.config
        averaged = nullcontext() if self.average is None else self.average.applied(self.model)
        with averaged, status(f"evaluating after step {self.state.steps}"):
            result = evaluate(
                self.model,
                self.dataset,
                batch=math.ceil(config.batch / config.accumulate),
                limit=config.evaluate_sequences,
                precision=self.precision,
                world=self.world,
                should_stop=lambda: self.stop.received is not None,
            )
        if result is not None:
            if not math.isfinite(result["loss"]):
                self.records.forget(self.state.steps)
            self.records.check_finite(
                {"loss": result["loss"]}, f"in the evaluation at {self.state.steps}"
            )
            self.records.write({"step": self.state.steps, "evaluation": result})
            self.progress.say(f"step {self.state.steps}: {in_words(result)}")
        return result

    def _should_stop(self) -> bool:
        """True if any process was asked to; all agree, so that they stop after the same step."""
        asked, failed = float(self.stop.received is not None), float(self.records.failed)
        stops, failed = self.world.sum([asked, failed])
        if failed:
            self.records.finish()
        if stops:
            self.signal = self.stop.received or signal.SIGTERM
        return stops > 0

    def _done(self) -> float:
        """Share of the budget spent."""
        kind, amount = self.config.budget
        return float(getattr(self.state, kind) / amount)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step > 0 and step % every == 0
