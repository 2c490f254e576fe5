"""`record`: episodes of a scripted behaviour in a small world; `GraphWalk`, shortest paths.

A graph of ``nodes`` nodes and ``edges`` edges, all connected, is drawn from a seed; one of its
nodes is the goal. A walk begins at a random other node and goes to neighbours, each step paid with
-1, until it arrives, or after ``steps`` steps. The best return from a node is minus its distance to
the goal. After the motivating example of "Decision Transformer" (Chen and others, 2021).
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from everyformer.data.episodes.episode import Episode
from everyformer.data.episodes.spaces import Space
from everyformer.data.episodes.trajectories import Trajectories

NAME = "everyformer/GraphPath-v0"
"""of the world, by which runs on the built-in data know it since it was an environment"""
Behaviour = Callable[[np.random.Generator, Any, int], Any]
"""an action, from a generator, an observation and the number of the episode"""


def episode_seed(seed: int, number: int) -> int:
    """The seed of the episode of this number."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def record(
    world: Any,
    act: Behaviour,
    spaces: tuple[Space, Space],
    episodes: int,
    seed: int,
    name: str,
    recipe: str,
) -> Trajectories:
    """So many episodes, each with a seed of its own for the world and another for the behaviour.

    Args:
        world: with ``reset`` and ``step`` as gymnasium has them.
        spaces: of its observations and its actions.
        name, recipe: of the world, and what is done in it, as data sets keep them.
    """
    made = []
    for number in range(episodes):
        own = episode_seed(seed, number)
        random = np.random.default_rng((own, 1))
        seen, acted, paid, over = [world.reset(seed=own)[0]], [], [], False
        while not over:
            acted.append(act(random, seen[-1], number))
            observation, reward, ended, cut, _ = world.step(acted[-1])
            seen.append(observation)
            paid.append(reward)
            over = ended or cut
        last = np.arange(len(acted)) == len(acted) - 1
        seen_in, done, rewards = (np.array(values) for values in (seen, acted, paid))
        made.append(Episode(seen_in, done, rewards, last & ended, last & cut))
    return Trajectories(made, *spaces, name, recipe)


def random_graph(nodes: int, edges: int, seed: int) -> np.ndarray:
    """Adjacency (nodes, nodes) of a connected graph without loops: a random tree and more edges.

    All trees are equally likely: they are the first arrivals of a walk that jumps anywhere (Aldous
    and Broder), and have longer paths than those that grow node by node.
    """
    random = np.random.default_rng(seed)
    joined = np.zeros((nodes, nodes), dtype=bool)
    at = int(random.integers(nodes))
    unseen = set(range(nodes)) - {at}
    while unseen:
        before, at = at, int(random.integers(nodes))
        if at in unseen:
            unseen.remove(at)
            joined[before, at] = joined[at, before] = True
    free = np.argwhere(np.triu(~joined, 1))
    for a, b in random.permutation(free)[: edges - (nodes - 1)]:
        joined[a, b] = joined[b, a] = True
    return joined


def distances_to(goal: int, joined: np.ndarray) -> np.ndarray:
    """Edges from each node to ``goal``, by breadth-first search."""
    distances = np.full(len(joined), -1)
    distances[goal] = 0
    queue = deque([goal])
    while queue:
        node = queue.popleft()
        for other in np.flatnonzero(joined[node] & (distances < 0)):
            distances[other] = distances[node] + 1
            queue.append(int(other))
    return distances


class GraphWalk:
    """The world: a graph, its goal, and a walk in it."""

    def __init__(self, graph: int = 0, nodes: int = 20, edges: int = 25, steps: int = 10) -> None:
        self.joined, self.steps = random_graph(nodes, edges, graph), steps
        """(nodes, nodes) booleans: there is an edge"""
        self.goal = int(np.random.default_rng((graph, 1)).integers(nodes))
        self.distances = distances_to(self.goal, self.joined)
        """edges from each node to the goal"""

    def reset(self, *, seed: int) -> tuple[np.int64, dict[str, Any]]:
        start = int(np.random.default_rng(seed).integers(len(self.joined) - 1))
        self.node, self.elapsed = start + (start >= self.goal), 0
        return np.int64(self.node), {}

    def step(self, action: int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Go to a neighbour of the node."""
        self.node, self.elapsed = action, self.elapsed + 1
        ended = self.node == self.goal
        return np.int64(self.node), -1.0, ended, not ended and self.elapsed >= self.steps, {}

    def record(self, walks: int, seed: int) -> Trajectories:
        """Random walks."""

        def wander(random: np.random.Generator, node: np.int64, _: int) -> np.int64:
            random.random()
            return random.choice(np.flatnonzero(self.joined[node]))

        space = Space("discrete", "int64", count=len(self.joined))
        policy = "random: steps to random neighbours"
        return record(self, wander, (space, space), walks, seed, NAME, policy)
