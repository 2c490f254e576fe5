"""Experts for gymnasium's classic control: a pole is caught by a linear rule, the rest swings up.

What swings gains energy from a force along its motion; that is all that MountainCar and Acrobot
need. Pendulum is pumped to the energy that it has upright, and held there by a linear rule.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from everyformer.rl.experts.base import Expert, Reflex

PUSH = 0.5
"""force on the continuous car: enough, and squared it is paid for"""
CATCH = 0.6
"""radians from upright within which the linear rule acts"""
PUMP, STIFFNESS, DAMPING = 3.0, 15.0, 3.0
TORQUE = 2.0
"""the largest of Pendulum"""


def cart_pole(observations: np.ndarray) -> np.ndarray:
    """Push to the side on which the pole is, or will be half a second on."""
    angle, velocity = observations[:, 2], observations[:, 3]
    return (angle + 0.5 * velocity > 0).astype(np.int64)


def mountain_car(observations: np.ndarray) -> np.ndarray:
    """Push along the motion."""
    return np.where(observations[:, 1] >= 0, 2, 0)


def mountain_car_continuous(observations: np.ndarray) -> np.ndarray:
    """Push along the motion, gently."""
    return np.where(observations[:, 1:] >= 0, PUSH, -PUSH)


def acrobot(observations: np.ndarray) -> np.ndarray:
    """Turn the joint the way the lower link swings, less some of how the upper one does."""
    return np.where(observations[:, 5] - 0.3 * observations[:, 4] >= 0, 2, 0)


def pendulum(observations: np.ndarray, gravity: float) -> np.ndarray:
    """Bring the energy to that of standing upright at rest, which is 0 here; then balance. Mass and
    length are 1."""
    cosine, sine, velocity = observations.T
    angle = np.arctan2(sine, cosine)
    energy = velocity**2 / 6 + gravity / 2 * (cosine - 1)
    swing = -PUMP * energy * np.where(velocity >= 0, 1, -1)
    balance = -STIFFNESS * angle - DAMPING * velocity
    torque = np.where(np.abs(angle) < CATCH, balance, swing)
    return torque.clip(-TORQUE, TORQUE)[:, None]


EXPERTS = {
    "CartPole-v1": Expert(
        "a proportional-derivative rule on the pole's angle", lambda _: Reflex(cart_pole), 0.4
    ),
    "MountainCar-v0": Expert("force along the motion", lambda _: Reflex(mountain_car), 0.25),
    "MountainCarContinuous-v0": Expert(
        f"a force of {PUSH} along the motion", lambda _: Reflex(mountain_car_continuous), 0.8
    ),
    "Acrobot-v1": Expert("torque along the motion of the links", lambda _: Reflex(acrobot), 0.8),
    "Pendulum-v1": Expert(
        "energy pumped to that of standing upright, where a linear rule balances",
        lambda environment: Reflex(partial(pendulum, gravity=environment.g)),
        0.65,
    ),
}
