"""GPT-2 and ViT: our layers with copied weights gives Hugging Face's numbers."""

import pytest
import torch

import everyformer as ef

transformers = pytest.importorskip("transformers")
torch.manual_seed(0)


def with_random_weights(model):
    """All of them: biases start at zero and norms at one, which would hide an exchange."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


def test_gpt_equals_huggingface_gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=20, n_embd=24, n_layer=2, n_head=3, initializer_range=0.2
    )
    theirs = with_random_weights(transformers.GPT2LMHeadModel(config))
    ours = ef.create_model("gpt", vocabulary=50, width=24, layers=2, heads=3, max_length=20)
    ours = ours.double().eval()
    old = theirs.transformer.state_dict()
    new = {
        "embedding.weight": old["wte.weight"],
        "head.weight": old["wte.weight"],
        "position.table": old["wpe.weight"],
        "stack.norm.weight": old["ln_f.weight"],
        "stack.norm.bias": old["ln_f.bias"],
    }
    for n in range(2):
        here, there = f"stack.blocks.{n}", f"h.{n}"
        biases = old[f"{there}.attn.c_attn.bias"].chunk(3)
        for part, bias in zip(("query", "key", "value"), biases, strict=True):
            new[f"{here}.mixer.project.biases.{part}"] = bias
        # Conv1D holds its matrices transposed
        new[f"{here}.mixer.project.weights.0"] = old[f"{there}.attn.c_attn.weight"].T
        new[f"{here}.mixer.out.weight"] = old[f"{there}.attn.c_proj.weight"].T
        new[f"{here}.mixer.out.bias"] = old[f"{there}.attn.c_proj.bias"]
        for ours_name, name in (("up", "c_fc"), ("down", "c_proj")):
            new[f"{here}.feedforward.{ours_name}.weight"] = old[f"{there}.mlp.{name}.weight"].T
            new[f"{here}.feedforward.{ours_name}.bias"] = old[f"{there}.mlp.{name}.bias"]
        for ours_name, name in (("mixer_norm", "ln_1"), ("feedforward_norm", "ln_2")):
            for kind in ("weight", "bias"):
                new[f"{here}.{ours_name}.{kind}"] = old[f"{there}.{name}.{kind}"]
    ours.load_state_dict(new)
    tokens = torch.randint(0, 50, (2, 13))
    got = ours(tokens, targets=tokens.roll(-1, 1))
    torch.testing.assert_close(got.logits, theirs(tokens).logits, rtol=0, atol=1e-10)
    labels = tokens.clone()
    expected = theirs(tokens, labels=labels).loss
    shifted = torch.cat((tokens[:, 1:], torch.full((2, 1), -100)), 1)
    # theirs casts the logits to float32 before its loss
    loss = ours(tokens, targets=shifted).loss
    torch.testing.assert_close(loss, expected.double(), rtol=1e-6, atol=0)
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()


def test_gpt_starts_with_scaled_residual_outputs():
    model = ef.create_model("gpt", width=128, layers=8, heads=4)
    block = model.stack.blocks[0]
    assert abs(block.feedforward.up.weight.std() - 0.02) < 5e-4
    for linear in (block.mixer.out, block.feedforward.down):
        assert abs(linear.weight.std() - 0.02 / 4) < 2e-4


def test_vit_equals_huggingface_vit():
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
        image_size=8, patch_size=4, num_channels=3, num_labels=5, layer_norm_eps=1e-6,
        initializer_range=0.2,
    )  # fmt: skip
    theirs = with_random_weights(transformers.ViTForImageClassification(config))
    ours = ef.create_model(
        "vit", "classify-image", width=24, layers=2, heads=3, image=(3, 8, 8), patch=4, classes=5
    )
    ours = ours.double().eval()
    old = theirs.state_dict()
    new = {
        "pool.token": old["vit.embeddings.cls_token"],
        "position.table": old["vit.embeddings.position_embeddings"][0],
        "patches.weight": old["vit.embeddings.patch_embeddings.projection.weight"],
        "patches.bias": old["vit.embeddings.patch_embeddings.projection.bias"],
        "stack.norm.weight": old["vit.layernorm.weight"],
        "stack.norm.bias": old["vit.layernorm.bias"],
        "pool.head.weight": old["classifier.weight"],
        "pool.head.bias": old["classifier.bias"],
    }
    for n in range(2):
        here, there = f"stack.blocks.{n}", f"vit.layers.{n}"
        attention = f"{there}.attention"
        parts = [old[f"{attention}.{p}_proj.weight"] for p in ("q", "k", "v")]
        new[f"{here}.mixer.project.weights.0"] = torch.cat(parts)
        for part, name in zip(("query", "key", "value"), ("q", "k", "v"), strict=True):
            new[f"{here}.mixer.project.biases.{part}"] = old[f"{attention}.{name}_proj.bias"]
        for kind in ("weight", "bias"):
            new[f"{here}.mixer.out.{kind}"] = old[f"{attention}.o_proj.{kind}"]
            new[f"{here}.feedforward.up.{kind}"] = old[f"{there}.mlp.fc1.{kind}"]
            new[f"{here}.feedforward.down.{kind}"] = old[f"{there}.mlp.fc2.{kind}"]
            new[f"{here}.mixer_norm.{kind}"] = old[f"{there}.layernorm_before.{kind}"]
            new[f"{here}.feedforward_norm.{kind}"] = old[f"{there}.layernorm_after.{kind}"]
    ours.load_state_dict(new)
    images = torch.randn(2, 3, 8, 8).double()
    expected = theirs(images).logits
    torch.testing.assert_close(ours(images).logits, expected, rtol=0, atol=1e-10)
