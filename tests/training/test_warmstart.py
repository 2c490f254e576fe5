"""Fine-tuning: what fits is taken as it is, tables are fitted, another model is refused."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.cli import main
from everyformer.core.errors import CheckpointError, DataError, ShapeError
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.genes.positions.learned import resize_grid
from everyformer.models.base import Model
from everyformer.training.warmstart import warm_start
from helpers import overridden

TEXT: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "max_length": 12}
PICTURES: dict[str, Any] = {"width": 12, "layers": 1, "heads": 3, "patch": 2, "classes": 3}
WORDS = ("a", "warm", "tree", "and", "the", "quick", "brown", "fox")
SIZES = ("--width", "16", "--layers", "1", "--heads", "2")
SHORT = ("--length", "16", "--batch", "4", "--steps", "3", "--training.threads", "1")


def built(member: str, task: str, seed: int = 0, **options: Any) -> Model:
    torch.manual_seed(seed)
    model = ef.create_model(member, task, **options).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def started(model: Model, source: Model, folder: Path) -> Any:
    ef.save(source, folder)
    return warm_start(model, folder)


def test_a_classifier_takes_the_body_of_a_masked_model(tmp_path: Path) -> None:
    old = built("bert", "mlm", vocabulary=41, **TEXT)
    new = built("bert", "classify-text", seed=1, vocabulary=40, classes=3, **TEXT)
    head = new.pool.head.weight.clone()
    report = started(new, old, tmp_path / "m")
    assert report.fresh == ("pool.head.weight", "pool.head.bias")
    assert report.fitted == ("embedding.weight (40 rows of 41, 0 fresh)",)
    parts = ("transform.weight", "transform_norm.weight", "transform.bias", "transform_norm.bias")
    assert set(report.left) == {*parts, "head.bias"}
    assert torch.equal(new.pool.head.weight, head)
    assert len(report.taken) + 3 == len(list(new.named_parameters()))
    tokens = torch.randint(0, 40, (2, 12))
    x = old.stack(old.add_positions(old.embed(old.embedding, tokens), None, None)).y
    got = new.stack(new.add_positions(new.embed(new.embedding, tokens), None, None)).y
    torch.testing.assert_close(got, x, rtol=0, atol=0)


@pytest.mark.parametrize("member", ["rope", "aft-local", "gmlp"])
def test_the_same_model_is_taken_whole(member: str, tmp_path: Path) -> None:
    old, new = (built(member, "lm", seed=seed, **TEXT) for seed in (0, 1))
    report = started(new, old, tmp_path / "m")
    assert (report.fitted, report.fresh, report.left) == ((), (), ())
    tokens = torch.randint(0, 256, (2, 12))
    assert torch.equal(new(tokens).logits, old(tokens).logits)


def test_a_masked_model_from_a_language_model_has_one_fresh_row(tmp_path: Path) -> None:
    old = built("learned", "lm", vocabulary=40, **TEXT)
    new = built("learned", "mlm", seed=1, vocabulary=41, **TEXT)
    fresh = new.embedding.weight[40].clone()
    report = started(new, old, tmp_path / "m")
    assert report.fitted == ("embedding.weight (40 rows of 40, 1 fresh)",)
    assert torch.equal(new.embedding.weight[:40], old.embedding.weight)
    assert torch.equal(new.embedding.weight[40], fresh)
    assert new.head.weight is new.embedding.weight


@pytest.mark.parametrize(("before", "after", "pooling"), [(12, 9, "class"), (9, 12, "mean")])
def test_positions_of_text_keep_their_rows(before, after, pooling, tmp_path):
    old = built("learned", "lm", **{**TEXT, "max_length": before})
    new = built(
        "learned", "classify-text", seed=1, pooling=pooling, **{**TEXT, "max_length": after}
    )
    own = new.position.table.clone()
    started(new, old, tmp_path / "m")
    first = int(pooling == "class")
    shared = min(before, after)
    assert torch.equal(new.position.table[first : first + shared], old.position.table[:shared])
    assert torch.equal(new.position.table[:first], own[:first])
    assert torch.equal(new.position.table[first + shared :], own[first + shared :])


@pytest.mark.parametrize("size", [6, 8, 14])
def test_a_vit_at_another_resolution_equals_huggingface_interpolation(size, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=48,
        image_size=8, patch_size=2,
    )  # fmt: skip
    theirs = transformers.ViTModel(config).double().embeddings
    old = built("vit", "classify-image", image=(3, 8, 8), **PICTURES)
    with torch.no_grad():
        theirs.position_embeddings.copy_(old.position.table[None])
    new = built("vit", "classify-image", seed=1, image=(3, size, size), **PICTURES)
    report = started(new, old, tmp_path / "m")
    tokens = torch.zeros(1, (size // 2) ** 2 + 1, 12, dtype=torch.float64)
    expected = theirs.interpolate_pos_encoding(tokens, size, size)[0]
    torch.testing.assert_close(new.position.table, expected, rtol=0, atol=1e-12)
    assert torch.equal(new.position.table[0], old.position.table[0])
    assert not report.fresh
    if size == 8:
        pictures = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        assert torch.equal(new(pictures).logits, old(pictures).logits)


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"member": "rope"},
        r"theirs -> its own: position: 'sinusoidal' -> 'rope'\): give the member, sizes",
    ),
    ({"width": 24}, "width: 16 -> 24"),
    ({"layers": 1}, "layers: 2 -> 1"),
    ({"window": 3}, "mixer.window: None -> 3"),
    ({"norm": "rmsnorm"}, "block.norm: 'layernorm' -> 'rmsnorm'"),
    ({"vocabulary": 99}, "different tokens: 256 -> 99"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=lambda v: str(v))
def test_another_model_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    old = built("attention", "lm", **TEXT)
    options = {"member": "attention", **TEXT, **change}
    new = built(options.pop("member"), "classify-text", **options)
    weights = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        started(new, old, tmp_path / "m")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in new.state_dict().items())


def test_text_is_no_start_for_pictures_nor_a_table_for_another_grid(tmp_path: Path) -> None:
    old = built("attention", "lm", **TEXT)
    new = built("attention", "classify-image", image=(1, 8, 8), **TEXT)
    with pytest.raises(CheckpointError, match="reads text, not pictures"):
        started(new, old, tmp_path / "m")
    with pytest.raises(ShapeError, match="9 rows"):
        resize_grid(torch.zeros(9, 2), (2, 4), (3, 3))


def test_options_that_change_no_weights_meaning_may_differ(tmp_path: Path) -> None:
    sizes = {"vocabulary": 40, **TEXT}
    drops = {"dropout": 0.3, "attention_dropout": 0.2}
    old = built("blockwise", "lm", backend="blocked", loss_chunk=3, **drops, **sizes)
    new = built(
        "blockwise", "classify-text", backend="dense", feedforward_chunk=5, drop_path=0.1, **sizes
    )
    assert started(new, old, tmp_path / "m").fresh == ("pool.head.weight", "pool.head.bias")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., Any]:
    """A command line in a folder with a text and a table of labelled texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    draw = random.Random(0)
    Path("text.txt").write_text(" ".join(draw.choices(WORDS, k=1200)), encoding="utf-8")
    rows = [(label, draw.choices(WORDS, k=4)) for label in ("x", "y") for _ in range(20)]
    lines = [f"{' '.join(words)} {label},{label}" for label, words in rows]
    Path("labels.csv").write_text("text,label\n" + "\n".join(lines), encoding="utf-8")

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def weights(path: str) -> dict[str, Tensor]:
    return ef.load(path).state_dict()


def test_a_classifier_is_trained_from_a_masked_run(run: Callable[..., Any]) -> None:
    data = ("--data", "text.txt", "--tokenizer", "chars")
    code, _, err = run("train", "bert", *data, *SIZES, *SHORT, "--out", "masked")
    assert code == 0, err
    assert "task mlm" in err
    tune = ("train", "--from", "masked", "--data", "labels.csv", "--lr", "0.0001", *SHORT)
    code, out, err = run(*tune, "--out", "tuned", "--training.warmup", "0")
    assert code == 0, err
    assert "task classify-text" in err
    assert "from masked: 2 fresh: pool.head.weight, pool.head.bias" in err
    assert "accuracy" in out
    old, new = weights("masked"), weights("tuned")
    distance = old["stack.blocks.0.mixer.out.weight"] - new["stack.blocks.0.mixer.out.weight"]
    assert 0 < float(distance.abs().max()) < 1e-3
    saved = json.loads(Path("tuned/config.json").read_text())
    assert saved["tokenizer"]["kind"] == saved["run"]["data"]["tokenizer"] == "chars"
    # the run goes on by itself, even where what it began with is gone
    Path("masked").rename("away")
    assert run("train", "--resume", "--out", "tuned", "--steps", "4")[0] == 0
    assert run("eval", "tuned")[0] == 0


def test_a_classifier_from_a_model_of_hidden_sentences_hides_none(run: Callable[..., Any]) -> None:
    hidden = ("--model.summaries.cpc", "0.25")
    words = ("train", "etc", "--data", "text.txt", *SIZES, *SHORT, *hidden, "--out", "masked")
    assert run(*words)[0] == 0
    code, _, err = run("train", "--from", "masked", "--data", "labels.csv", *SHORT, "--out", "x")
    assert code == 0, err
    model = json.loads(Path("x/config.json").read_text())["model"]
    assert (model["task"], model["summaries"]["cpc"]) == ("classify-text", 0)


@pytest.mark.full("trainings, seconds")
def test_a_split_of_heads_and_a_schedule_are_inherited(run: Callable[..., Any]) -> None:
    heads = ("--by-head", "attention,aft-simple")
    plain = ("--data", "text.txt", *SIZES, *SHORT)
    assert run("train", "attention", *plain, *heads, "--out", "heads")[0] == 0
    layers = ("--by-layer", "window=3", "--out", "layers")
    assert run("train", "attention", *plain, *layers)[0] == 0
    for source in ("heads", "layers"):
        tune = ("train", "--from", source, "--data", "labels.csv", *SHORT, "--out", f"{source}-2")
        code, _, err = run(*tune)
        assert code == 0, err
        runs = (json.loads(Path(p, "config.json").read_text()) for p in (source, f"{source}-2"))
        old, new = (one["model"] for one in runs)
        assert [new[name] for name in ("mixer", "schedule")] == [old["mixer"], old["schedule"]]


def test_a_causal_classifier_leaves_aside_what_the_task_of_the_start_alone_read(run):
    """And so when the run goes on; said again, it is refused."""
    ahead = ("--model.lookahead", "0.5")
    words = ("train", "attention", "--data", "text.txt", *SIZES, *SHORT, *ahead, "--out", "lm")
    assert run(*words)[0] == 0
    tune = ("train", "attention", "--from", "lm", "--data", "labels.csv", *SHORT)
    code, _, err = run(*tune, "--model.pooling", "last", "--out", "tuned")
    assert code == 0, err
    assert json.loads(Path("tuned/config.json").read_text())["model"]["causal"] is True
    assert run("train", "--resume", "--out", "tuned", "--steps", "4")[0] == 0
    plain = ("train", "attention", "--data", "labels.csv", *SIZES, *SHORT, *ahead, "--out", "x")
    code, _, err = run(*plain)
    assert code == 2
    assert "--model.lookahead 0.5 is read in the task lm alone" in err


def test_a_run_of_another_kind_is_refused(run: Callable[..., Any]) -> None:
    data = ("--data", "text.txt", "--tokenizer", "chars")
    assert run("train", "gmlp", *data, *SIZES, *SHORT, "--out", "lm")[0] == 0
    tune = ("--from", "lm", "--data", "labels.csv", *SHORT, "--out", "tuned")
    both = ("--by-layer", "window=3", "--mixer.window", "4")
    for words, told in (
        (("train", "bert", *tune), "continue with `train gmlp --from lm`"),
        (("train", *tune, "--width", "32"), "width: 16 -> 32"),
        (("train", *tune, "--tokenizer", "bytes"), "leave out --tokenizer bytes"),
        (("train", "--from", "none", "--data", "labels.csv"), "no saved model and no run"),
        (("train", "attention", *data, *SIZES, *SHORT, "--out", "tuned", *both),
         "--mixer.window and --by-layer window=... both say what it is"),
    ):  # fmt: skip
        code, _, err = run(*words)
        assert (code, told in err) == (2, True), err
        assert not Path("tuned").exists()
    model: Any = ef.load("lm")
    with pytest.raises(DataError, match="trained with the tokenizer chars"):
        warm_start(model, "lm", ByteTokenizer())
    with pytest.raises(DataError, match="only one of them knows"):
        warm_start(model, "lm", CharTokenizer("xyz"))


@pytest.mark.full("3 s: a store is filled")
def test_a_model_begins_with_a_store_as_it_was_without(run: Callable[..., Any]) -> None:
    """Another member may continue a model from which it differs in its memory alone."""
    small = ("--data", "text.txt", *SIZES, *SHORT)
    assert run("train", "t5-relative", *small, "--out", "plain")[0] == 0
    code, _, err = run(
        "train", "memorizing", "--from", "plain", "--data", "text.txt",
        *overridden(SHORT, ("--steps", "1", "--lr", "1e-9")),
        "--memory.slots", "64", "--memory.gate", "-30", "--out", "with",
    )  # fmt: skip
    assert code == 0, err
    old, new = (ef.load(name) for name in ("plain", "with"))
    chosen = [new.config.genes["memory"].get(key) for key in ("normalize", "keep_position", "gate")]
    assert chosen == [False, True, -30.0]
    tokens = torch.randint(97, 120, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(new(tokens).logits, old(tokens).logits, rtol=1e-4, atol=1e-4)
    code, _, err = run("train", "transformer-xl", "--from", "plain", *small, "--out", "other")
    assert code == 2
    assert "position (t5-relative there, xl-relative here)" in err


def test_another_gene_than_that_of_the_start_has_its_own_options(run: Callable[..., Any]) -> None:
    small = ("--data", "text.txt", *SIZES, *SHORT)
    assert run("train", "xl-relative", *small, "--out", "old")[0] == 0
    tune = ("train", "--from", "old", "--data", "text.txt", *SHORT, "--out", "new")
    code, _, err = run(*tune, "--position", "rope")
    assert code == 2
    assert "position: xl-relative -> rope" in err or "'xl-relative' -> 'rope'" in err
    code, _, err = run(*tune, "--memory", "segment", "--memory.slots", "8")
    assert code == 0, err
    assert ef.load("new").config.genes["memory"].get("slots") == 8
