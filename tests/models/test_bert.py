"""BERT: our wiring with copied weights gives Hugging Face's numbers and torch's layer."""

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.core.errors import GeneError
from helpers import shifted

transformers = pytest.importorskip("transformers")

WIDTH, LAYERS, HEADS, VOCABULARY, LONGEST, CLASSES = 24, 2, 3, 50, 20, 4
SIZES = {
    "width": WIDTH, "layers": LAYERS, "heads": HEADS, "vocabulary": VOCABULARY,
    "max_length": LONGEST,
}  # fmt: skip
LENGTHS = (13, 7, 1)
BLOCK = {
    "mixer.out": "attention.output.dense",
    "mixer_norm": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}
EMBEDDINGS = {
    "embedding.weight": "word_embeddings.weight",
    "position.table": "position_embeddings.weight",
    "types.weight": "token_type_embeddings.weight",
    "embedding_norm.weight": "LayerNorm.weight",
    "embedding_norm.bias": "LayerNorm.bias",
}


def body(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Embeddings and layers under our names; ``held`` are weights or gradients under theirs."""
    made = {ours: held[f"bert.embeddings.{name}"] for ours, name in EMBEDDINGS.items()}
    for n in range(LAYERS):
        here, there = f"stack.blocks.{n}", f"bert.encoder.layer.{n}"
        own = f"{there}.attention.self"
        parts = [held[f"{own}.{part}.weight"] for part in ("query", "key", "value")]
        made[f"{here}.mixer.project.weights.0"] = torch.cat(parts)
        for part in ("query", "key", "value"):
            made[f"{here}.mixer.project.biases.{part}"] = held[f"{own}.{part}.bias"]
        for ours, name in BLOCK.items():
            for kind in ("weight", "bias"):
                made[f"{here}.{ours}.{kind}"] = held[f"{there}.{name}.{kind}"]
    return made


def pooled_head(held: dict[str, Tensor]) -> dict[str, Tensor]:
    pairs = {"pool.head.0": "bert.pooler.dense", "pool.head.2": "classifier"}
    return {
        f"{ours}.{kind}": held[f"{name}.{kind}"]
        for ours, name in pairs.items()
        for kind in ("weight", "bias")
    }


@pytest.fixture
def texts() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their types, and which are real: right-padded rows of different length."""
    torch.manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (3, LENGTHS[0]))
    types = torch.randint(0, 2, tokens.shape)
    keep = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    return tokens, types, keep


def test_a_bert_classifier_equals_huggingface(texts: tuple[Tensor, Tensor, Tensor]) -> None:
    tokens, types, keep = texts
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, intermediate_size=4 * WIDTH, max_position_embeddings=LONGEST,
        initializer_range=0.2, num_labels=CLASSES,
    )  # fmt: skip
    other = shifted(
        transformers.BertForSequenceClassification(config).double().eval(), vectors=True
    )
    model = ef.create_model(
        "bert", "classify-text", classes=CLASSES, pooling="first", head_hidden=WIDTH,
        head_activation="tanh", **SIZES,
    )  # fmt: skip
    model = model.double().eval()
    held = other.state_dict()
    model.load_state_dict(body(held) | pooled_head(held))
    labels = torch.tensor([0, 3, 2])
    out = model(tokens, targets=labels, types=types, mask=ef.Mask(keep=keep))
    expected = other(tokens, attention_mask=keep.long(), token_type_ids=types, labels=labels)
    torch.testing.assert_close(out.logits, expected.logits, rtol=0, atol=1e-10)
    torch.testing.assert_close(out.loss, expected.loss, rtol=0, atol=1e-10)
    # without types all tokens are of the first
    torch.testing.assert_close(model(tokens).logits, other(tokens).logits, rtol=0, atol=1e-10)
    out.loss.backward()
    expected.loss.backward()
    found, ours = ({n: p.grad for n, p in m.named_parameters()} for m in (other, model))
    for name, expected in (body(found) | pooled_head(found)).items():
        torch.testing.assert_close(ours.pop(name), expected, rtol=0, atol=1e-10, msg=name)
    assert not ours
    assert sum(p.numel() for p in model.parameters()) == other.num_parameters()


def test_a_bert_layer_is_a_torch_encoder_layer(texts: tuple[Tensor, Tensor, Tensor]) -> None:
    keep = texts[2]
    model = ef.create_model("bert", "mlm", **SIZES)
    block = model.stack.blocks[0].double().eval()
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, activation="gelu", layer_norm_eps=1e-12, batch_first=True,
        norm_first=False,
    ).double().eval()  # fmt: skip
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    old = layer.state_dict()
    biases = old["self_attn.in_proj_bias"].chunk(3)
    new = {"mixer.project.weights.0": old["self_attn.in_proj_weight"]}
    new |= {
        f"mixer.project.biases.{p}": b
        for p, b in zip(("query", "key", "value"), biases, strict=True)
    }
    pairs = {
        "mixer.out": "self_attn.out_proj", "mixer_norm": "norm1", "feedforward.up": "linear1",
        "feedforward.down": "linear2", "feedforward_norm": "norm2",
    }  # fmt: skip
    new |= {f"{a}.{k}": old[f"{b}.{k}"] for a, b in pairs.items() for k in ("weight", "bias")}
    block.load_state_dict(new)
    x = torch.randn(3, LENGTHS[0], WIDTH, dtype=torch.float64)
    ours = block(x, mask=ef.Mask(keep=keep)).y
    expected = layer(x, src_key_padding_mask=~keep)
    torch.testing.assert_close(ours[keep], expected[keep], rtol=0, atol=1e-10)


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "class"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_a_classification(pooling: str, side: str) -> None:
    torch.manual_seed(0)
    model = ef.create_model("bert", "classify-text", pooling=pooling, classes=3, **SIZES)
    model = model.double().eval()
    tokens = torch.randint(0, VOCABULARY, (1, 6))
    padding = torch.full((1, 4), 7)
    real = torch.ones(1, 6, dtype=torch.bool)
    order = (padding, tokens) if side == "left" else (tokens, padding)
    flags = (~real[:, :4], real) if side == "left" else (real, ~real[:, :4])
    got = model(torch.cat(order, 1), mask=ef.Mask(keep=torch.cat(flags, 1))).logits
    torch.testing.assert_close(got, model(tokens).logits)


def test_a_causal_classifier_cannot_read_the_first_token() -> None:
    with pytest.raises(GeneError, match="pooling='first' reads the first token"):
        ef.create_model("attention", "classify-text", pooling="first", causal=True)
