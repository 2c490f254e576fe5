"""BERT: our layers with copied weights gives Hugging Face's numbers and torch's layer."""

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.core.errors import GeneError
from everyformer.data.batch import IGNORED

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


def theirs(kind: str) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, intermediate_size=4 * WIDTH, max_position_embeddings=LONGEST,
        initializer_range=0.2, num_labels=CLASSES,
    )  # fmt: skip
    model = getattr(transformers, kind)(config).double().eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


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


def masked_head(held: dict[str, Tensor]) -> dict[str, Tensor]:
    there = "cls.predictions"
    made = {"head.bias": held[f"{there}.bias"]}
    for kind in ("weight", "bias"):
        made[f"transform.{kind}"] = held[f"{there}.transform.dense.{kind}"]
        made[f"transform_norm.{kind}"] = held[f"{there}.transform.LayerNorm.{kind}"]
    return made


def pooled_head(held: dict[str, Tensor]) -> dict[str, Tensor]:
    pairs = {"pool.head.0": "bert.pooler.dense", "pool.head.2": "classifier"}
    return {
        f"{ours}.{kind}": held[f"{name}.{kind}"]
        for ours, name in pairs.items()
        for kind in ("weight", "bias")
    }


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }


def same(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(ours) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.fixture
def texts() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their types, and which are real: right-padded rows of different length."""
    torch.manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (3, LENGTHS[0]))
    types = torch.randint(0, 2, tokens.shape)
    padding_mask = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    return tokens, types, padding_mask


def test_bert_equals_huggingface_in_logits_loss_and_gradients(texts):
    tokens, types, padding_mask = texts
    other = theirs("BertForMaskedLM")
    model = ef.create_model("bert", "mlm", **SIZES).double().eval()
    new = body(other.state_dict()) | masked_head(other.state_dict())
    model.load_state_dict(new | {"head.weight": new["embedding.weight"]})
    assert model.head.weight is model.embedding.weight
    # without types all tokens are of the first
    torch.testing.assert_close(model(tokens).logits, other(tokens).logits, rtol=0, atol=1e-10)
    targets = torch.where(padding_mask & (torch.rand(tokens.shape) < 0.5), tokens, IGNORED)
    out = model(tokens, targets=targets, types=types, mask=ef.Mask(padding_mask=padding_mask))
    expected = other(
        tokens, attention_mask=padding_mask.long(), token_type_ids=types, labels=targets
    )
    torch.testing.assert_close(
        out.logits[padding_mask], expected.logits[padding_mask], rtol=0, atol=1e-10
    )
    torch.testing.assert_close(out.loss, expected.loss, rtol=0, atol=1e-10)
    out.loss.backward()
    expected.loss.backward()
    held = gradients(other)
    same(gradients(model), body(held) | masked_head(held))
    assert sum(p.numel() for p in model.parameters()) == other.num_parameters()


def test_a_bert_classifier_equals_huggingface(texts: tuple[Tensor, Tensor, Tensor]) -> None:
    tokens, types, padding_mask = texts
    other = theirs("BertForSequenceClassification")
    model = ef.create_model(
        "bert", "classify-text", classes=CLASSES, pooling="first", head_hidden=WIDTH,
        head_activation="tanh", **SIZES,
    )  # fmt: skip
    model = model.double().eval()
    held = other.state_dict()
    model.load_state_dict(body(held) | pooled_head(held))
    labels = torch.tensor([0, 3, 2])
    out = model(tokens, targets=labels, types=types, mask=ef.Mask(padding_mask=padding_mask))
    expected = other(
        tokens, attention_mask=padding_mask.long(), token_type_ids=types, labels=labels
    )
    torch.testing.assert_close(out.logits, expected.logits, rtol=0, atol=1e-10)
    torch.testing.assert_close(out.loss, expected.loss, rtol=0, atol=1e-10)
    out.loss.backward()
    expected.loss.backward()
    found = gradients(other)
    same(gradients(model), body(found) | pooled_head(found))
    assert sum(p.numel() for p in model.parameters()) == other.num_parameters()


def test_a_bert_layer_is_a_torch_encoder_layer(texts: tuple[Tensor, Tensor, Tensor]) -> None:
    padding_mask = texts[2]
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
    ours = block(x, mask=ef.Mask(padding_mask=padding_mask)).y
    expected = layer(x, src_key_padding_mask=~padding_mask)
    torch.testing.assert_close(ours[padding_mask], expected[padding_mask], rtol=0, atol=1e-10)


@pytest.mark.parametrize("pooling", ["first", "last"])
def test_the_first_and_the_last_real_token_are_found_behind_padding(pooling: str) -> None:
    torch.manual_seed(0)
    model = ef.create_model("bert", "classify-text", pooling=pooling, classes=3, **SIZES)
    model = model.double().eval()
    tokens, real = torch.randint(0, VOCABULARY, (1, 6)), torch.arange(10)[None] < 6
    padded = torch.cat((tokens, torch.full((1, 4), 7)), 1)
    for turns in (0, 4):
        mask = ef.Mask(padding_mask=real.roll(turns, 1))
        got = model(padded.roll(turns, 1), mask=mask).logits
        torch.testing.assert_close(got, model(tokens).logits)
    with pytest.raises(GeneError, match="`pooling='first'` reads the first token"):
        ef.create_model("attention", "classify-text", pooling="first", causal=True)
