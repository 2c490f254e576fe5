"""Pictures of models, and the command that draws them."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from everyformer.cli import main
from everyformer.core.config import to_dict
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.core.panels import Panel, Panels, Pictures, Recorded, line_by_line
from everyformer.core.trace import record, trace
from everyformer.data import DataConfig, load_dataset
from everyformer.lab.report.learned import learned_of_all, rebuilt
from everyformer.lab.show.heatmaps import draw_offered, draw_panels, wrapped
from everyformer.lab.show.inside import toeplitz_share
from everyformer.lab.show.pictures import (
    PICTURES,
    Inside,
    draw_pictures,
    drawn_images,
    learned_pictures,
    save_images,
)
from everyformer.models.base import Model
from everyformer.models.build import build_model, configure, create_model
from everyformer.training import RunDirectory, TrainingConfig, train
from report_results import made_up

IDS = torch.arange(12)[None]


def tiny(member: str, **options: Any) -> Model:
    torch.manual_seed(0)
    return create_model(member, width=16, layers=2, heads=2, max_length=12, **options)


def shown(figure: Any) -> list[np.ndarray]:
    return [np.ma.filled(a.images[0].get_array(), np.nan) for a in figure.axes if a.images]


MASKED = ["encodings", "masks"]
ABLE = {
    "attention": ["weights", *MASKED], "learned": ["weights", *MASKED],
    "learned-per-layer": ["weights", *MASKED], "aft-simple": ["weights", *MASKED],
    "axial": ["weights", *MASKED], "sparse-transformer": ["weights", *MASKED],
    "image-transformer": ["weights", *MASKED], "blockwise": ["weights", *MASKED],
    "linear": ["weights", "features", *MASKED], "performer": ["weights", "features", *MASKED],
    "rfa": ["weights", "features", *MASKED], "routing": ["weights", "clusters", *MASKED],
    "reformer": ["weights", "buckets", *MASKED], "aft-full": ["weights", "position-bias", *MASKED],
    "rope": ["weights", "rotary", "masks"], "shaw": ["weights", "masks"],
    "gmlp": ["spatial", "masks"], "amlp": ["weights", "spatial", "masks"],
    "alibi": ["weights", "position-bias", "distances", "masks"],
    "t5-relative": ["weights", "position-bias", "distances", "masks"],
    "da-transformer": ["weights", "distances", "masks"],
    "xl-relative": ["weights", "terms", "masks"],
}  # fmt: skip


@pytest.mark.parametrize(("member", "names"), ABLE.items(), ids=ABLE)
def test_what_applies(member: str, names: list[str]) -> None:
    """Each picture is drawn of the first member in the list that has it."""
    model = tiny(member)
    assert Inside(model, IDS).able() == names
    for name in names:
        if next(other for other, able in ABLE.items() if name in able) == member:
            assert all(figure.get_label() for figure in draw_pictures(model, IDS, name).values())


def test_what_does_not_apply_names_what_does() -> None:
    model = tiny("gmlp")
    for what in {*PICTURES} - {"spatial", "masks"}:
        with pytest.raises(UnsupportedError, match="it has spatial and masks"):
            draw_pictures(model, IDS, what)


def test_the_six_panels_of_the_sparse_transformer() -> None:
    """Figure 3 of its paper: 6 x 6 tokens, all, strided and fixed, as matrices and as pictures."""
    model = tiny("sparse-transformer", stride=6)
    panels = shown(draw_pictures(model, IDS, "masks")["masks"])
    assert [panel.shape for panel in panels] == [(36, 36)] * 3 + [(6, 6)] * 3
    i, j = np.arange(36)[:, None], np.arange(36)
    earlier = j <= i
    expected = [
        earlier,
        earlier & ((i - j < 6) | ((i - j) % 6 == 0)),
        earlier & ((i // 6 == j // 6) | (j % 6 == 5)),
    ]
    for matrix, picture, seen in zip(panels[:3], panels[3:], expected, strict=True):
        np.testing.assert_array_equal(matrix > 0, seen)
        np.testing.assert_array_equal(picture.flatten(), matrix[27])


def test_a_rectangle_is_drawn_in_the_picture() -> None:
    model = create_model(
        "image-transformer", "pixels", width=8, heads=2, layers=1, image=(1, 6, 8), dims=2,
        pixels={"order": "blocks", "tile": (2, 2)}, flange=(1, 2),
    )  # fmt: skip
    matrix, picture = shown(draw_pictures(model, torch.zeros(1, 1, 6, 8).byte(), "masks")["masks"])
    assert matrix.shape == (48, 48)
    # token 32 begins the tile of rows 4, 5 and columns 0, 1
    assert np.argwhere(picture > 0).tolist() == [[3, 0], [3, 1], [3, 2], [3, 3], [4, 0]]


def test_weights_are_those_of_the_trace_and_the_future_is_blank() -> None:
    panels = shown(draw_pictures(tiny("attention"), IDS, "weights")["weights"])
    assert len(panels) == 4
    for weights in panels:
        assert np.isnan(weights[np.triu_indices(12, 1)]).all()
        np.testing.assert_allclose(np.nansum(weights, 1), 1, rtol=1e-5)


def test_weights_by_features_stand_over_those_of_their_kernel() -> None:
    model = tiny("performer", features=5)
    figures = draw_pictures(model, IDS, "features")
    assert [one.shape for one in shown(figures["features"])] == [(12, 5)] * 4
    panels = shown(figures["features-weights"])
    with trace(model) as traced, torch.no_grad():
        model(IDS)
    made, exact = (traced.find(name)["stack.blocks.1.mixer"][0] for name in ("weights", "exact"))
    np.testing.assert_allclose(np.nan_to_num(panels[4:]), torch.cat((made, exact)), atol=1e-6)
    elsewhere = (made - exact).abs().sum(-1).mean() / 2
    plain = torch.ones(12, 12).tril() / torch.arange(1, 13)[:, None]
    apart = (plain - exact).abs().sum(-1).mean() / 2
    text = figures["features-weights"].get_label()
    assert f", {elsewhere:.0%}; with equal" in text
    assert text.endswith(f", {apart:.0%}.")


def test_spatial_shows_start_and_trained() -> None:
    start, model = tiny("gmlp"), tiny("gmlp")
    with torch.no_grad():
        for block in model.stack.blocks:
            block.mixer.spatial.add_(torch.eye(12))  # type: ignore[union-attr, operator]
    figure = draw_pictures(model, IDS, "spatial", start=start)["spatial"]
    panels = [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes if axes.images]
    assert panels[::2] == [("layer 1", "start"), ("layer 1", "trained")]
    assert panels[1::2] == [("layer 2", ""), ("layer 2", "")]
    assert np.nanmax(np.abs(shown(figure)[0])) < 1e-4
    assert np.nanmax(shown(figure)[2]) == pytest.approx(1, abs=1e-4)
    figures = draw_pictures(tiny("gmlp", sgu_heads=2), IDS, "spatial")
    assert list(figures) == ["spatial-layer-1", "spatial-layer-2"]
    mean, first, second = shown(figures["spatial-layer-1"])
    np.testing.assert_allclose(mean, (first + second) / 2, atol=1e-8)
    both = {"causal": False, "task": "classify-text", "vocabulary": 20}
    for panel in shown(draw_pictures(tiny("gmlp", **both), IDS, "spatial")["spatial"]):
        assert not np.isnan(panel).any(), "no mask"


def test_toeplitz_matrices_are_found() -> None:
    lags = torch.arange(6)[:, None] - torch.arange(6)
    assert toeplitz_share(lags[None].float(), causal=False) == pytest.approx(1)
    torch.manual_seed(0)
    assert toeplitz_share(torch.randn(1, 40, 40), causal=True) < 0.2


def test_sinusoids_are_those_of_the_paper() -> None:
    model = create_model("sinusoidal", width=128, layers=1, heads=1, max_length=32)
    [table] = shown(draw_pictures(model, IDS, "encodings")["encodings"])
    assert table.shape == (32, 128)
    np.testing.assert_allclose(table[:, 0], np.sin(np.arange(32)), atol=1e-6)


def test_masks_show_who_sees_whom() -> None:
    model = tiny("attention", window=3)
    figure = draw_pictures(model, IDS, "masks", length=12)["masks"]
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert titles == ["window 3", "window 3\n3 padded", "window 3\n2 documents"]
    plain, padded, documents = shown(figure)
    place = np.arange(12)
    lag = place[:, None] - place
    np.testing.assert_array_equal(plain, (lag >= 0) & (lag < 3))
    np.testing.assert_array_equal(padded, plain * (place < 9))
    assert documents[8, 7] == 0
    assert documents[9, 8] == 1
    # also where all read the same, so that one row says it
    _, padded, _ = shown(draw_pictures(tiny("attention", task="mlm"), IDS, "masks")["masks"])
    assert padded.shape == (16, 16)
    assert padded[:, :12].all()
    assert not padded[:, 12:].any()


def test_etc_is_drawn_with_a_global_token_for_each_sentence() -> None:
    """Globals are read by all; hard g2l is their own 12 tokens of 48 beside the globals."""
    opened, hard = shown(draw_pictures(tiny("etc", task="mlm"), IDS, "masks")["masks"])
    for seen in (opened, hard):
        assert (seen[:, :4] > 0).all()
        assert (seen[20] > 0).sum() == 4 + 7, "radius 3"
    assert (opened[:4] > 0).all()
    assert ((hard[:4] > 0).sum(1) == 4 + 12).all()


class Gears(Mixer):
    """As of another package: it has windows, weights and a picture of its own."""

    def __init__(self, windows: tuple[int | None, ...]) -> None:
        super().__init__()
        self.causal, self.width, self.seen = True, 16, windows

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.seen

    recorded: ClassVar[Recorded] = {
        "speed": lambda found, causal: Panels(
            [[Panel(path, one[0].numpy()) for path, one in found.items()]], "", None
        )
    }

    def pictures(self, length: int | None, layers: Sequence[Mixer]) -> Pictures:
        panel = Panel("teeth", np.eye(length or 5))
        return {"gears": lambda: Panels([[panel] * len(layers)], "", None)}

    def forward(self, x: torch.Tensor, **given: Any) -> MixerOutput:
        record(self, "weights", lambda: torch.eye(x.shape[1])[None, None])
        record(self, "speed", lambda: torch.ones(1, 2, 3))
        return MixerOutput(x, None, {})


def test_a_mixer_of_another_package_is_drawn() -> None:
    model = tiny("aft-simple", position=None)
    for block in model.stack.blocks:
        block.mixer = Gears(windows=(2, None))  # type: ignore[union-attr]
    assert Inside(model, IDS).able() == ["weights", "speed", "masks", "gears"]
    assert [one.shape for one in shown(draw_pictures(model, IDS, "speed")["speed"])] == [(2, 3)] * 2
    assert list(learned_pictures(model, IDS)) == ["weights", "speed"]
    assert [one.shape for one in shown(draw_pictures(model, IDS, "gears")["gears"])] == [(5, 5)] * 2
    [weights, _] = shown(draw_pictures(model, IDS, "weights")["weights"])
    np.testing.assert_array_equal(np.nan_to_num(weights), np.eye(12))
    narrow, whole, *_ = shown(draw_pictures(model, IDS, "masks", length=4)["masks"])[::2]
    assert narrow.sum() == 4 + 3
    assert whole.sum() == 4 + 3 + 2 + 1


def test_learned_pictures_draw_what_training_changes() -> None:
    assert list(learned_pictures(tiny("learned"), IDS)) == ["weights", "encodings"]
    labels = list("a b\n$日x^_\\{}")
    few = learned_pictures(tiny("attention"), IDS, most=1, labels=labels)
    assert list(few) == ["weights"]
    assert len(shown(few["weights"])) == 1
    assert "The first 1 of 2 layers" in str(few["weights"].get_label())
    # labels stand at the tokens in any script
    few["weights"].draw_without_rendering()
    ticks = few["weights"].axes[0].get_xticklabels()
    assert [t.get_text() for t in ticks] == list("a␣b↵$·x^_\\{}")


@pytest.mark.full("draws every picture")
@pytest.mark.parametrize(("member", "before"), [("attention", 0), ("gmlp", 1), ("aft-full", 1)])
def test_all_pictures_are_of_one_pass_each(member: str, before: int) -> None:
    """Of the model before training too, where something is drawn beside it."""
    model, start = tiny(member).train(), tiny(member)
    state, passes = torch.get_rng_state(), list[Model]()
    for one in (model, start):
        one.register_forward_hook(lambda read, given, out: passes.append(read))
    assert learned_pictures(model, IDS, start=start)
    assert passes == [model, *[start] * before]
    assert len(Inside(model, IDS).able()) > 1
    assert passes[1 + before :] == [model]
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_panels_alike_share_edges_and_colour_bars() -> None:
    """Numbers stand at the outer edges alone; a bar is of the figure, a row or a panel."""
    panels = [Panel(f"head {n}", np.eye(8)) for n in range(3)]
    figure = draw_panels(wrapped(panels, 2), "three", None)
    numbers = [
        (axis.yaxis.get_tick_params()["labelleft"], axis.xaxis.get_tick_params()["labelbottom"])
        for axis in figure.axes
    ]
    assert numbers == [(True, False), (False, True), (True, True)]
    unlike = draw_panels([[panels[0], Panel("wide", np.ones((2, 8)))]], "two", None)
    assert all(axis.yaxis.get_tick_params().get("labelleft", True) for axis in unlike.axes)
    options: tuple[dict[str, bool], ...] = ({}, {"by_row": True}, {"apart": True})
    drawn = [draw_panels(wrapped(panels, 2), "", "weight", **each) for each in options]
    assert [len(figure.axes) - 3 for figure in drawn] == [1, 2, 3]


def test_texts_of_tokens_stay_in_their_cells() -> None:
    """Tokens of several letters ran over each other."""
    texts = ["return", " isinstance", "(", "everything"] * 16
    values = line_by_line(np.ones(len(texts)))
    panels = Panels([[Panel("", values, ("token", "line"))]], "", "layer", wide=True, text=True)
    figure = draw_offered(panels, texts)
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(texts)
    for (left, right), box in zip(itertools.pairwise(boxes[:32]), boxes, strict=False):
        assert left.x1 <= right.x0 + 1
        assert box.height <= axes.bbox.height / 2


def test_images_form_a_grid(tmp_path: Path) -> None:
    images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    images[1] = 200
    made = imread(save_images(images, tmp_path / "a" / "grid.png"))
    assert made.shape == (2 * 64 + 2, 3 * 64 + 4, 4)
    assert made[5, 70, 0] == pytest.approx(200 / 255)
    assert made[100, 150, 0] == 1
    model = create_model("attention", "pixels", width=8, layers=1, heads=1, image=(1, 3, 3))
    figure = drawn_images(model, 4)
    assert figure.axes[0].images
    assert "4 images" in str(figure.get_label())
    with pytest.raises(ShapeError, match="uint8"):
        save_images(images.float(), tmp_path / "b.png")
    with pytest.raises(ConfigError, match="cannot write"):
        save_images(images, tmp_path / "b.xyz")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gMLP trained for three steps, as `train` and `compare` leave it."""
    place = tmp_path_factory.mktemp("cmp") / "runs" / "gmlp-seed0" / "run"
    data = DataConfig(source="copy", length=33, symbols=8)
    dataset = load_dataset(data)
    config = configure(
        "gmlp", width=16, layers=1, vocabulary=dataset.vocabulary, max_length=dataset.length
    )
    torch.manual_seed(7)
    model = build_model(config)
    training = TrainingConfig(steps=3, batch=2, evaluate_sequences=2, seed=7, threads=1)
    with RunDirectory(place) as directory:
        extra = {"run": {"data": to_dict(data)}}
        train(model, dataset, training, directory, extra_config=extra, show=False)
    return place


def test_the_start_is_rebuilt_from_the_seed(run: Path) -> None:
    values = json.loads((run / "config.json").read_text())
    made, again = rebuilt(values), rebuilt(values)
    torch.manual_seed(7)
    fresh = build_model(made.config)
    for name, weight in fresh.state_dict().items():
        assert torch.equal(made.state_dict()[name], weight)
        assert torch.equal(again.state_dict()[name], weight)


def test_report_looks_into_trained_runs(run: Path) -> None:
    results = made_up(("gmlp", "attention"))
    results["config"]["data"] |= {"source": "copy", "length": 33, "symbols": 8}
    gmlp, attention = learned_of_all(results, run.parents[2])
    assert list(gmlp.pictures) == ["spatial"]
    assert attention.pictures == {}
    assert "could not be shown" in attention.why
    results["config"]["data"]["source"] = "/nowhere/at/all.txt"
    assert all("no example" in one.why for one in learned_of_all(results, run.parents[2]))


def test_show_draws_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("spatial", "masks"):
        assert (tmp_path / f"{name}.png").exists()
        assert str(tmp_path / f"{name}.png") in printed
    assert main(["show", str(run), "weights"]) == 2
    assert "it has spatial and masks" in capsys.readouterr().err
    assert main(["show", str(run), "spatial", "--text", "abc"]) == 2
    assert "reads no text; --text cannot be used" in capsys.readouterr().err


def test_show_draws_a_member(tmp_path: Path) -> None:
    text = ("attention", "weights", "--text", "abc", "--format", "svg")
    for words in (text, ("longformer", "masks", "--task", "mlm")):
        assert main(["show", *words, "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"weights.svg", "masks.png"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["attentoin"], "did you mean 'attention'"),
        (["attention", "wieghts"], "did you mean 'weights'"),
        (["attention", "--length", "0"], "at least 1"),
        (["attention", "--text", ""], "empty"),
        (["gpt", "masks", "--task", "pixels"], "does not do the task pixels"),
        ([".", "masks", "--task", "mlm"], "leave --task out"),
    ],
)
def test_wrong_usage_says_what_is_right(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_four_terms_add_up_to_the_scores_behind_the_weights() -> None:
    model = tiny("xl-relative").double()
    with trace(model) as traced, torch.no_grad():
        model(IDS)
    for path, terms in traced.find("terms").items():
        scores = terms.sum(1).masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
        weights = traced.find("weights")[path.removesuffix(".position")]
        torch.testing.assert_close(scores.softmax(-1), weights)
    panels = shown(draw_pictures(model, IDS, "terms")["terms"])
    assert len(panels) == 8
    assert np.isnan(panels[0][np.triu_indices(12, 1)]).all()


def test_curves_are_those_of_the_position() -> None:
    model = tiny("da-transformer", spread=0.5)
    figure = draw_pictures(model, IDS, "distances", length=10)["distances"]
    for axes, block in zip(figure.axes, model.stack.blocks, strict=True):
        expected = block.mixer.position.factors(torch.arange(10), torch.float32)
        lines = torch.tensor(np.array([line.get_ydata() for line in axes.lines]))
        torch.testing.assert_close(lines, expected.detach())
