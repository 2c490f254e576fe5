"""A figure shows the numbers that were declared."""

import numpy as np
import pytest
import torch

from everyformer.lab.experiments.figures import Bars, Lines, Matrices, drawn


def test_a_bar_is_the_mean_of_its_seeds_which_are_points() -> None:
    heights = {"a, b": [0.5, 1.0], "c": 0.25}
    figure = drawn(Bars(heights, "share", {"c": (0.2, 0.4)}, level=0.125, top=1))
    [axis] = figure.axes
    assert [bar.get_height() for bar in axis.patches] == [0.75, 0.25]
    seeds, span, level = (np.asarray(line.get_ydata()).tolist() for line in axis.lines)
    assert (seeds, span, level) == ([0.5, 1.0], [0.2, 0.4], [0.125, 0.125])
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["a,\nb", "c"]
    assert (axis.get_ylabel(), axis.get_ylim()) == ("share", (0, 1))
    [near] = drawn(Bars(heights, "share", near=True)).axes
    assert near.get_ylim()[0] == pytest.approx(0.95 * 0.25)


def test_seeds_of_a_line_have_one_colour_and_one_name() -> None:
    losses = Lines({"a": [[4.0, 2.0, 0.0], [2.0, 2.0]], "b": [1.0]}, smooth=2, levels={"ln 2": 0.7})
    [axis] = drawn(losses).axes
    assert [line.get_ydata().tolist() for line in axis.lines[:3]] == [[3, 1], [2], [1]]
    assert len({line.get_color() for line in axis.lines[:2]}) == 1
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b", "ln 2"]
    own = Lines({"a": [1.0, 2.0], "b": [3.0]}, {"a": [10.0, 20.0], "b": [15.0]}, ("n", "y"))
    [axis] = drawn(own).axes
    assert [line.get_xdata().tolist() for line in axis.lines] == [[10, 20], [15]]
    [axis] = drawn(Lines({"a": [1.0, 2.0]}, (64, 512), ("n", "y"), log="x")).axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["64", "512"]


def test_matrices_side_by_side_have_one_scale_and_panels_stand_in_a_row() -> None:
    both = Matrices({"m": torch.tensor([[-1.0, 0.5]]), "n": torch.tensor([[2.0]])}, ("x", "y"))
    lines, one, other, _bar = drawn([Lines({"a": [1.0]}), both]).axes
    assert len(lines.lines) == 1
    assert [axis.images[0].get_clim() for axis in (one, other)] == [(-2, 2)] * 2
    assert one.images[0].get_array().tolist() == [[-1.0, 0.5]]
    assert (one.get_title(), other.get_title(), one.get_xlabel()) == ("m", "n", "x")
    [axis, _] = drawn(Matrices({"m": torch.tensor([[0.5, 1.0]])})).axes
    assert axis.images[0].get_clim() == (0, 1)
