"""Shortest paths on a random graph: walks that lose their way hold the pieces of the best ones.

The rule. A graph of ``nodes`` nodes and ``edges`` edges, all connected, is drawn from the seed
``graph`` and stays the same; one of its nodes is the goal. The agent begins at a random other
node, sees the number of the node it is at, and names the node it goes to. Every step has a reward
of -1; arriving at the goal ends the episode. An action that names no neighbour is not valid: the
agent stays, and the step is paid all the same; ``info["action_mask"]`` (bytes, 1 where there is an
edge) tells which are. After ``steps`` steps the walk is truncated.

The best return from a node is minus its distance to the goal. After the motivating example of
"Decision Transformer" (Chen and others, 2021).
"""

from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from everyformer.core.bounds import Count, Seed, Several
from everyformer.core.config import converted
from everyformer.core.errors import ConfigError
from everyformer.rl.environments import canvas
from everyformer.rl.environments.base import MemoryTask

SIDE = 288
"""pixels of a picture"""


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


class GraphPath(MemoryTask[np.int64]):
    """``everyformer/GraphPath-v0``.

    Args:
        nodes: of the graph.
        edges: of the graph, from a tree's (nodes - 1) to all there can be.
        steps: a walk has at most; as many as the farthest node needs, at least.
        graph: seed of the graph and its goal.
    """

    metadata = {**MemoryTask.metadata, "reference_returns": (-8.1, -2.6)}  # noqa: RUF012

    def __init__(
        self,
        nodes: int = 20,
        edges: int = 25,
        steps: int = 10,
        graph: int = 0,
        render_mode: str | None = None,
    ) -> None:
        nodes = converted(Several, nodes, "--env.nodes")
        edges = converted(Count, edges, "--env.edges")
        seed = converted(Seed, graph, "--env.graph")
        super().__init__(converted(Count, steps, "--env.steps"), render_mode)
        if not nodes - 1 <= edges <= nodes * (nodes - 1) // 2:
            raise ConfigError(
                f"'--env.edges'={edges} make no connected graph of {nodes} nodes: give from "
                f"{nodes - 1} to {nodes * (nodes - 1) // 2}"
            )
        self.joined = random_graph(nodes, edges, seed)
        """(nodes, nodes) booleans: there is an edge"""
        self.goal = int(np.random.default_rng((seed, 1)).integers(nodes))
        self.distances = distances_to(self.goal, self.joined)
        """edges from each node to the goal"""
        if steps < (farthest := int(self.distances.max())):
            raise ConfigError(
                f"'--env.steps'={steps} are too few for the farthest node of graph {seed}, which "
                f"is {farthest} edges from the goal: give at least {farthest}"
            )
        self.observation_space = spaces.Discrete(nodes)
        self.action_space = spaces.Discrete(nodes)
        self.node, self.path = self.goal, [self.goal]

    def begin(self) -> None:
        start = int(self.np_random.integers(len(self.joined) - 1))
        self.node = start + (start >= self.goal)
        self.path = [self.node]

    def move(self, action: int) -> tuple[float, bool]:
        if self.joined[self.node, action]:
            self.node = action
            self.path.append(action)
        self.success = self.node == self.goal
        return -1.0, self.success

    def observe(self) -> np.int64:
        return np.int64(self.node)

    def notes(self) -> dict[str, Any]:
        return {"action_mask": self.joined[self.node].astype(np.int8)}

    def draw(self) -> canvas.Canvas:
        """The nodes on a circle, their edges, and the walk so far."""
        picture = canvas.Canvas(SIDE, SIDE)
        angles = 2 * np.pi * np.arange(len(self.joined)) / len(self.joined)
        middle, radius = SIDE / 2, 0.43 * SIDE
        at = [(middle - radius * np.cos(a), middle + radius * np.sin(a)) for a in angles]
        size = min(9.0, 0.4 * 2 * np.pi * radius / len(at))
        for a, b in np.argwhere(np.triu(self.joined)):
            picture.line(at[a], at[b], 2, canvas.FAINT)
        for a, b in pairwise(self.path):
            picture.line(at[a], at[b], 3, canvas.AGENT)
        for node, (y, x) in enumerate(at):
            picture.disc(y, x, size, canvas.GOOD if node == self.goal else canvas.WALL)
        picture.disc(*at[self.path[0]], size / 2, canvas.PAPER)
        picture.disc(*at[self.node], 1.3 * size, canvas.AGENT)
        return picture
