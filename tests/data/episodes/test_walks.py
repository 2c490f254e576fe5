"""Random walks on a graph: what is drawn, what is paid, and when a walk ends."""

import numpy as np
import pytest

from everyformer.data.episodes.walks import GraphWalk


@pytest.mark.parametrize(("nodes", "edges"), [(6, 5), (6, 15), (20, 25)])
@pytest.mark.parametrize("seed", range(3))
def test_the_graph_is_drawn_once_and_distances_are_those_of_powers(
    nodes: int, edges: int, seed: int
) -> None:
    graph = GraphWalk(seed, nodes, edges)
    joined = graph.joined
    assert joined.sum() == 2 * edges
    assert not np.diagonal(joined).any()
    assert (joined == joined.T).all()
    reached, expected = np.eye(nodes, dtype=int), np.full(nodes, -1)
    for power in range(nodes):
        expected[(expected < 0) & (reached[graph.goal] > 0)] = power
        reached = np.minimum(reached @ joined + reached, 1)
    assert graph.distances.tolist() == expected.tolist()
    assert (GraphWalk(seed, nodes, edges).joined == joined).all()
    assert edges == 15 or (GraphWalk(9, nodes, edges).joined != joined).any()


def test_walks_go_along_edges_and_end_at_the_goal_or_with_their_steps() -> None:
    graph = GraphWalk(3, steps=7)
    walks = graph.record(200, 5)
    for walk in walks.episodes:
        seen = walk.observations
        assert graph.joined[seen[:-1], seen[1:]].all()
        assert (seen[1:] == walk.actions).all()
        assert seen[0] != graph.goal
        assert (walk.rewards == -1).all()
        arrived = seen[-1] == graph.goal
        assert (walk.terminations[-1], walk.truncations[-1]) == (arrived, not arrived)
        assert arrived or len(walk) == 7
    assert {int(walk.observations[0]) for walk in walks.episodes} == {*range(20)} - {graph.goal}
    # neighbours alike: a node's are gone to about as often
    steps = np.concatenate([walk.actions[walk.observations[:-1] == 0] for walk in walks.episodes])
    counts = np.bincount(steps, minlength=20)[graph.joined[0]]
    assert counts.min() > 0.5 * counts.mean()


def test_they_are_those_of_earlier_versions() -> None:
    """The built-in data: runs on them have their fingerprint."""
    walks = GraphWalk().record(1000, 0)
    assert walks.statistics.return_mean == -8.053
    assert walks.environment == "everyformer/GraphPath-v0"
    assert walks.recipe == "random: steps to random neighbours"
    assert walks.episodes[0].observations.tolist()[:3] == [14, 7, 9]
