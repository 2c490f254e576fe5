"""`train`: steps, evaluations and checkpoints until the budget is spent, a stop, or a divergence.

Whatever a step does follows from the weights, the optimiser's state, the seed and the step's
number. So a run that was stopped or killed and then resumed writes the same numbers, bit for bit on
the same CPU and threads, as one that was not (with ``budget_seconds`` the clock has its say too).
"""

import math
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from everyformer.core.errors import ConfigError
from everyformer.core.plugins import command
from everyformer.data.dataset import Dataset
from everyformer.system.signals import GracefulStop
from everyformer.system.status import status
from everyformer.training.checks import check_training
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate, in_words
from everyformer.training.operations import positions
from everyformer.training.optimiser import copy_weights
from everyformer.training.parallel.world import join
from everyformer.training.precision import decide
from everyformer.training.progress import Part, Progress
from everyformer.training.result import TrainResult, peak_rss
from everyformer.training.run import Records, RunDirectory, describe_run
from everyformer.training.session import Session
from everyformer.training.speed import Speed
from everyformer.training.step import Update, update

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
            check_training(model, dataset, config, world)
            session = Session(model, dataset, config, world, Records(run, world))
            values = describe_run(model, dataset, config) | (extra_config or {})
            if resume:
                session.find(values)
            books = Bookkeeping(session, values, stop, part, show, warm_up)
            try:
                books.begin()
                _prepare(session, dataset, books.progress.say)
                books.open()
                _work(session, dataset, books)
            finally:
                books.close()
            return books.result()
    finally:
        model.train(was_training)
        torch.set_num_threads(threads)


def _prepare(session: Session, dataset: Dataset, say: Callable[[str], None]) -> None:
    """Fill the model from the checkpoint that was found, and make ready for updates."""
    session.records.fill_model(session.model)
    with status("timing steps in float32 and bfloat16"):
        precision = decide(session, dataset, say)
    session.prepare(precision)


def _work(session: Session, dataset: Dataset, books: "Bookkeeping") -> None:
    """Update the weights until the budget is spent or a stop is requested."""
    while not books.stopped():
        if not books.milestone(dataset):
            continue
        if session.done >= 1:
            if session.average is not None:
                copy_weights(session.model, session.average.values)
            return
        started = time.perf_counter(), time.process_time()
        books.stepped(update(session, dataset), *started)


class Bookkeeping:
    """Curves, evaluations and checkpoints of a session, its reports on stderr, and its end.

    Args:
        values: the run's config. stop: of signals. The others are those of `train`.
    """

    def __init__(
        self,
        session: Session,
        values: dict[str, Any],
        stop: GracefulStop,
        part: Part | None,
        show: bool,
        warm_up: int,
    ) -> None:
        self.session, self.values, self.stop = session, values, stop
        self.state, self.records = session.state, session.records
        self.speed = Speed(self.state, warm_up)
        self.progress = Progress(
            self.records.name or values["data"]["name"], session.done, part=part,
            show=show and session.world.first,
        )  # fmt: skip
        self.signal: int | None = None
        # what is part of a comparison continues it, and another program has words of its own
        self.again: str | None = None
        if self.records.path is not None and part is None and "run" in values:
            self.again = command(f"train --resume --out {shlex.quote(str(self.records.path))}")

    def begin(self) -> None:
        """Report what differs from the session before."""
        changed = "; ".join(self.records.changed)
        if changed and self.session.done < 1:
            self.progress.say(f"changed since the run began: {changed}")
        state, world = self.state, self.session.world
        before, state.processes = state.processes, world.size
        if state.steps and before != world.size:
            changes = world.device.type != "cpu"
            self.progress.say(
                f"trained by {before} at a time until here, by {world.size} from here on: rows "
                f"stay the same{', what is dropped or drawn in a step does not' if changes else ''}"
            )

    def open(self) -> None:
        """Open the files, and report what is to be trained."""
        steps, spent, say = self.state.steps, self.session.done >= 1, self.progress.say
        self.records.open(self.state, self.values, described=spent)
        if spent:
            changed = "; ".join(self.records.changed)
            kept = f", and what is new is not kept: {changed}" if changed else ""
            say(f"trained for {steps} steps, so nothing is left to train{kept}")
            return
        at = f", going on from step {steps}" if steps else ""
        say(f"training for {self.session.config.budget_words} on {self.session.world.device}{at}")

    def stopped(self) -> bool:
        """True, once all is saved, if any process is to stop; all stop after the same step."""
        requested, failed = float(self.stop.received is not None), float(self.records.failed)
        stops, failed = self.session.world.sum([requested, failed])
        if failed:
            self.records.finish()
        if not stops:
            return False
        self.signal = self.stop.received or signal.SIGTERM
        self._save()
        self.records.finish()
        hint = f"; continue with: {self.again}" if self.again else ""
        self.progress.say(f"stopped after step {self.state.steps}{hint}")
        return True

    def milestone(self, dataset: Dataset) -> bool:
        """Save and evaluate where they are due; False if a stop cut the evaluation off."""
        state, config, ended = self.state, self.session.config, self.session.done >= 1
        evaluates = not state.evaluated and (ended or _due(state.steps, config.evaluate_every))
        saves = ended or _due(state.steps, config.checkpoint_every)
        if saves:
            # before the evaluation, which may take long or fail; one more until it has succeeded
            self._save(config.keep + evaluates, last=ended)
        if not evaluates:
            return True
        result = self._evaluate(dataset)
        if result is None:
            return False
        if config.stop_at is not None and "accuracy" not in result:
            raise ConfigError(
                f"`stop_at` ({config.stop_at}) is an accuracy, but this model's losses are none of "
                "single answers, so it has none: leave it out"
            )
        state.evaluation = {"step": state.steps, **result}
        better = state.best is None or result["loss"] < state.best["loss"]
        state.best = state.evaluation if better else state.best
        # its accuracy may be the one that ends the run
        ended = self.session.done >= 1
        if saves or better or ended:
            self._save(last=ended)
        return True

    def _save(self, keep: int | None = None, last: bool = False) -> None:
        keep = keep or self.session.config.keep
        self.records.save(self.state, self.session.parts, keep, last=last)

    def _evaluate(self, dataset: Dataset) -> dict[str, Any] | None:
        session, config, step = self.session, self.session.config, self.state.steps
        with session.averaged(), status(f"evaluating after step {step}"):
            result = evaluate(
                session.model,
                dataset,
                batch=math.ceil(config.batch / config.accumulate),
                limit=config.evaluate_sequences,
                precision=session.precision,
                world=session.world,
                should_stop=lambda: self.stop.received is not None,
            )
        if result is not None:
            if not math.isfinite(result["loss"]):
                self.records.forget(step)
            self.records.check_finite({"loss": result["loss"]}, f"in the evaluation at {step}")
            self.records.write({"step": step, "evaluation": result})
            self.progress.say(f"step {step}: {in_words(result)}")
        return result

    def stepped(self, update: Update, start: float, cpu_start: float) -> None:
        """Count an update and its time since ``start``, log it and show it."""
        session, state, speed = self.session, self.state, self.speed
        elapsed = time.perf_counter() - start if session.world.first else 0.0
        own = positions(session.model, update.batch)
        every, seconds = session.world.sum([own, elapsed])
        tokens = round(every)
        state.tokens += tokens
        state.flops += session.operations.of(update.batch, tokens)
        state.seconds += seconds
        if session.operations.slowed:
            speed.leave_out(tokens, seconds)
        cpu_seconds = time.process_time() - cpu_start
        done = session.done
        if state.steps % session.config.log_every == 0 or state.steps == 1 or done >= 1:
            self._log(update)
        speed.stepped(cpu_seconds, ended=done >= 1)
        self.progress.update(done, state.steps, update.losses["task"], speed.reported)

    def _log(self, update: Update) -> None:
        state = self.state
        terms = {name: loss for name, loss in update.losses.items() if name != "task"}
        row = {
            "step": state.steps,
            "tokens": state.tokens,
            "flops": state.flops,
            "seconds": state.seconds,
            "loss": update.losses["task"],
            **({"losses": terms} if terms else {}),
            "lr": update.lr,
            "grad_norm": update.norm,
            "tokens_per_second": self.speed.report(),
        }
        self.records.write(row)
        state.logged = state.steps

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
            precision=self.session.precision,
            path=self.records.path,
            signal=self.signal,
            left_out=speed.left_out,
            timed=speed.timed,
        )


def _due(step: int, every: int | None) -> bool:
    return every is not None and step > 0 and step % every == 0
