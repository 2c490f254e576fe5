"""A session's speed: the first steps are left out, and reports are of what lies between them."""

from everyformer.training.checkpoint import TrainingState
from everyformer.training.result import Timed
from everyformer.training.speed import Speed


def step(state: TrainingState, speed: Speed, seconds: float, ended: bool = False) -> None:
    state.steps += 1
    state.tokens += 12
    state.seconds += seconds
    speed.stepped(seconds / 2, ended)


def test_first_steps_are_left_out_of_tokens_seconds_and_processor_time() -> None:
    state = TrainingState(steps=5, tokens=60, seconds=7.0)
    speed = Speed(state, warm_up=2)
    assert (speed.tokens_per_second, speed.timed, speed.left_out) == (0.0, None, 0)
    for seconds in (8.0, 4.0):
        step(state, speed, seconds)
    assert (speed.timed, speed.left_out) == (None, 2)
    for seconds in (1.0, 2.0, 3.0):
        step(state, speed, seconds)
    assert speed.timed == Timed(3, 6.0, 3.0)
    assert speed.tokens_per_second == 36 / 6


def test_steps_that_took_longer_to_be_counted_are_left_out_of_the_speed() -> None:
    state = TrainingState()
    speed = Speed(state, warm_up=1)
    step(state, speed, 8.0)
    for seconds in (2.0, 50.0):
        if seconds == 50:
            speed.leave_out(12, seconds)
        step(state, speed, seconds)
    assert speed.tokens_per_second == 12 / 2
    # of the steps since the last report
    assert speed.reported is None
    assert speed.report() == 24 / 10
    step(state, speed, 3.0)
    assert speed.report() == speed.reported == 4.0
    # a session of such steps alone has the speed of them
    state = TrainingState()
    speed = Speed(state, warm_up=0)
    speed.leave_out(12, 4.0)
    step(state, speed, 4.0)
    assert (speed.tokens_per_second, speed.report()) == (3.0, 0.0)


def test_a_sitting_that_ends_with_its_first_steps_counts_them() -> None:
    state = TrainingState()
    speed = Speed(state, warm_up=2)
    step(state, speed, 8.0)
    step(state, speed, 4.0, ended=True)
    assert speed.timed == Timed(2, 12.0, 6.0)
    assert speed.left_out == 0
    assert speed.tokens_per_second == 2.0
