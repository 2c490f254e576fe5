"""Models made longer: the old outputs on short texts, every row of the new tables, checkpoints."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.genes.model_options import SummaryOptions
from everyformer.lab.convert import export_checkpoint, import_checkpoint
from everyformer.models.lengthen import lengthen

ALL = ("query", "key", "value", "output")
SIZES = {"vocabulary": 23, "width": 16, "heads": 4, "layers": 2}


def old(member="bert", task="mlm", length=12, **options):
    torch.manual_seed(0)
    model = ef.create_model(member, task, max_length=length, **SIZES, **options).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def tokens(length, batch=2):
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(1))


MADE = [
    ("longformer", {"window": 22}, 12),
    ("longformer", {"window": 10}, 6),
    ("bigbird", {"block_size": 4}, 12),
]


@pytest.mark.parametrize(("mixer", "options", "length"), MADE)
@pytest.mark.parametrize(
    ("member", "task", "more"),
    [
        ("bert", "mlm", {}),
        ("bert", "classify-text", {"pooling": "first", "classes": 3}),
        ("gpt", "lm", {}),
        ("attention", "lm", {"position": "learned-per-layer"}),
        ("rope", "lm", {}),
    ],
)
def test_short_texts_give_what_they_gave_before(mixer, options, length, member, task, more):
    model = old(member, task, **more)
    made = lengthen(model, mixer, 40, **options)
    x = tokens(length)
    padding_mask = torch.ones(2, length, dtype=torch.bool)
    padding_mask[1, length - 2 :] = False
    real = padding_mask if task != "classify-text" else slice(None)
    got, expected = (
        one(x, mask=Mask(padding_mask=padding_mask)).logits[real] for one in (made, model)
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert made(tokens(40)).logits.isfinite().all()
    assert (made.config.member, made.config.tokens) == (mixer, 40)


@pytest.mark.parametrize("sharing", ["all", "sides", "none"])
def test_an_etc_without_global_tokens_is_the_same_model_within_its_radius(sharing):
    model, x = old().double(), tokens(12)
    made = lengthen(model, "etc", 25, sharing=sharing, radius=12, summaries=SummaryOptions())
    torch.testing.assert_close(made(x).logits, model(x).logits)


def test_a_layer_of_an_etc_with_a_global_token_reads_both_kinds_as_attention_would():
    model = old().double()
    made = lengthen(model, "etc", 12, radius=12, hard_g2l=False)
    x = torch.randn(1, 13, 16, dtype=torch.float64)
    mask = Mask(global_tokens=torch.arange(13)[None] == 0)
    before, after = model.stack.blocks[0].mixer, made.stack.blocks[0].mixer
    torch.testing.assert_close(after(x, mask=mask).y, before(x).y)
    assert made(tokens(12)).logits.shape == (2, 12, 23)
    classifier = old(task="classify-text", pooling="first")
    assert lengthen(classifier, "etc", 12)(tokens(9)).logits.shape == (2, 2)


@pytest.mark.parametrize("length", [12, 13, 24, 41])
def test_every_row_is_a_row_of_the_old_table(length):
    model = old()
    for mixer in ("longformer", "etc"):
        table = lengthen(model, mixer, length).position.table
        assert torch.equal(table, model.position.table[torch.arange(length) % 12])
    # and global projections are copies of their own
    mixer = lengthen(model, "longformer", 24, window=4).stack.blocks[0].mixer
    assert torch.equal(mixer.project_global.weights[0], mixer.project.weights[0])
    assert torch.equal(mixer.project_global.biases["key"], mixer.project.biases["key"])
    mixer.project.weights[0].data.zero_()
    assert mixer.project_global.weights[0].abs().sum() > 0


@pytest.mark.parametrize("name", ["Bert", "Roberta"])
def test_a_checkpoint_that_is_made_longer_goes_back_as_a_longformer(name, tmp_path):
    """A text of more than the old table, with a global token, in both libraries."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, max_position_embeddings=20 + 2 * (name == "Roberta"),
    )  # fmt: skip
    theirs = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    theirs.save_pretrained(tmp_path / "short")
    model = import_checkpoint(tmp_path / "short").model
    made = lengthen(model, "longformer", 50, window=8)
    x = tokens(5).clamp(min=2)
    torch.testing.assert_close(made(x).logits, theirs(x).logits, rtol=0, atol=1e-5)
    assert export_checkpoint(made, tmp_path / "long", "longformer").left == []
    again = transformers.LongformerForMaskedLM.from_pretrained(tmp_path / "long").eval()
    x, marked = tokens(43).clamp(min=2), torch.zeros(2, 43, dtype=torch.bool)
    marked[:, 0] = True
    expected = again(x, global_attention_mask=marked.long()).logits
    got = made(x, mask=Mask(global_tokens=marked)).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


WRONG = [
    (old, "reformer", ConfigError, "longformer or bigbird"),
    (lambda: old(length=21), "longformer", ConfigError, "21 tokens"),
    (lambda: old("gpt", "lm", window=3), "longformer", UnsupportedError, "window=3"),
    (lambda: old("aft-conv", "lm"), "longformer", UnsupportedError, "aft-conv"),
    (lambda: old("shaw", "lm"), "longformer", UnsupportedError, "shaw"),
    (lambda: old("gpt", "lm"), "etc", UnsupportedError, "task lm"),
    (lambda: old("attention", "classify-text", causal=True), "etc", GeneError, "causal"),
    (lambda: old(task="classify-text", pooling="class"), "etc", GeneError, "pooling='globals'"),
    (lambda: old("attention", "mlm", position="rope"), "etc", GeneError, "no place|acts on"),
]


@pytest.mark.parametrize(("make", "mixer", "error", "said"), WRONG)
def test_what_cannot_go_on_is_refused(make, mixer, error, said):
    with pytest.raises(error, match=said):
        lengthen(make(), mixer, 20)
