"""Pictures of episodes: their numbers stand where they belong."""

import numpy as np
import torch

from everyformer.report.episodes import (
    draw_attended,
    draw_film,
    draw_remembered,
    draw_returns,
    draw_spread,
)


def row(target: float, mean: float, around: tuple[float, float] | None) -> dict:
    return {"target": target, "return": mean, "return_interval": around, "episodes": 3}


def test_what_is_reached_stands_over_what_is_asked_for() -> None:
    figure = draw_returns([row(9, 8, (6, 9)), row(2, 3, None)], best=8.5)
    [axes] = figure.axes
    asked, reached = axes.containers[0][0].get_data()
    assert (list(asked), list(reached)) == ([2, 9], [3, 8])
    [bars] = axes.containers[0][2]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[3, 3], [6, 9]]
    assert figure.get_label() == (
        "Mean returns of 3 episodes for each return that was asked for, with 95% intervals: from 3 "
        "for 2 to 8 for 9. The best episode of the data has 8.5."
    )


def test_a_strip_has_the_first_and_the_last_picture_and_what_was_returned() -> None:
    for steps in (1, 5, 40):
        pictures = np.arange(steps + 1, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 6, 3))
        figure = draw_film(pictures.astype(np.uint8), np.full(steps, 0.5), "a track")
        shown = [axes for axes in figure.axes if axes.images]
        assert len(shown) == min(steps + 1, 12)
        titles = [axes.get_title() for axes in shown]
        assert titles[0] == "0: 0"
        assert titles[-1] == f"{steps}: {steps / 2:.4g}"
        last = shown[-1].images[0].get_array()
        assert last is not None
        assert (last == steps).all()


def test_the_tokens_of_a_step_are_read_together() -> None:
    """Of 3 steps of 2 tokens the first of each acts, and reads itself and those before it alike."""
    weights = torch.tril(torch.ones(6, 6))
    weights /= weights.sum(-1, keepdim=True)
    figure = draw_attended({"stack.layers.0.mixer": weights[None]}, tokens=2, reader=0, first=7)
    values = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    expected = [[1, np.nan, np.nan], [2 / 3, 1 / 3, np.nan], [2 / 5, 2 / 5, 1 / 5]]
    np.testing.assert_allclose(values.astype(float), expected, rtol=1e-6)
    # 0, 2/3 and 2 * 2/5 + 1 * 2/5 steps
    assert "Mean distance read, layer by layer: 0.6 steps" in figure.get_label()
    assert "step 0 is step 7 of the episode" in figure.get_label()


def test_steps_that_are_read_by_memory_are_parted_by_episode_and_cues_are_marked() -> None:
    """Two episodes of 3 and 2 steps: each step reads the first of its episode and itself alike."""
    weights = np.zeros((2, 5, 5))
    for begin, steps in ((0, range(3)), (3, range(3, 5))):
        for step in steps:
            weights[:, step, begin] += 0.5
            weights[:, step, step] += 0.5
    figure = draw_remembered({"stack.blocks.0.mixer": weights}, begins=[0, 3], cues=[0, 3])
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["layer 1, head 1", "layer 1, head 2"]
    for axes in panels:
        values = np.ma.filled(axes.images[0].get_array(), np.nan)
        np.testing.assert_array_equal(values, np.where(np.tri(5), weights[0], np.nan))
        lines = {tuple(np.ravel(line.get_data())) for line in axes.lines}
        assert lines == {(2.5, 2.5, 0, 1), (0, 1, 2.5, 2.5)}
        marked = [(*box.get_xy(), box.get_width(), box.get_height()) for box in axes.patches]
        assert marked == [(-0.5, -0.5, 1, 3), (2.5, 2.5, 1, 2)]
    # (0 + 1 / 2 + 2 / 2 + 0 + 1 / 2) / 5 steps back, and half of the weight of steps without a cue
    assert figure.get_label().endswith(
        "of 5 steps of 2 episodes, which lines part. Darker: more weight (square root scale). Mean "
        "distance read, layer by layer: 0.4 steps. Marked columns: steps that show what is to be "
        "remembered; share of the weight of later steps that lies on them, layer by layer: 50%."
    )


def test_returns_that_are_not_asked_for_are_counted() -> None:
    returns = np.array([0.0, 1.0, 1.0, 4.0])
    played = {"return": 1.5, "return_interval": [-0.2, 3.2], "episodes": 4, "success": 0.25}
    figure = draw_spread(returns, played, best=4.5)
    counted = {
        round(bar.get_x(), 3): bar.get_height()
        for bar in figure.axes[0].containers[0]
        if bar.get_height()
    }
    assert counted == {0.0: 1, 1.0: 2, 3.8: 1}
    assert figure.get_label() == (
        "Returns of 4 episodes, from 0 to 4, 1.5 (-0.2 to 3.2) on average. 25% of them solve the "
        "task."
    )
