"""Our language models behave as Hugging Face models: saved, loaded, generated from, trained."""

import importlib
import json
import sys
from inspect import signature

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, MissingExtraError, ShapeError, UnsupportedError

transformers = pytest.importorskip("transformers")

from everyformer.interop import hf  # noqa: E402

MEMBERS = ["gpt", "rope", "aft-full", "aft-local", "aft-simple", "aft-conv", "gmlp", "amlp"]


def model_of(member="gpt", **options):
    """A small model whose logits differ enough to choose between tokens."""
    torch.manual_seed(0)
    size = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "max_length": 40}
    model = ef.create_model(member, **{**size, **options})
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "position" not in name:
            torch.nn.init.normal_(weight, std=0.4)
    return model.eval()


def tokens_of(rows=2, length=9):
    torch.manual_seed(1)
    return torch.randint(3, 30, (rows, length))


def padded(length=9, missing=4):
    """Two rows, the second padded on the left."""
    tokens, mask = tokens_of(2, length), torch.ones(2, length, dtype=torch.long)
    mask[1, :missing] = 0
    return tokens * mask, mask


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("member", ["gpt", "aft-local", "gmlp"])
def test_saved_and_loaded_by_the_auto_class_is_the_same_model(tmp_path, member, tie):
    wrapped = hf.EveryformerForCausalLM.wrap(model_of(member, tie=tie))
    wrapped.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is hf.EveryformerForCausalLM
    assert loaded.config.model_config == wrapped.model.config
    assert (loaded.model.head.weight is loaded.model.embedding.weight) is tie
    assert not loaded.training
    tokens = tokens_of()
    assert torch.equal(loaded(tokens).logits, wrapped.model(tokens).logits)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["model_type"] == "everyformer"
    assert stored["everyformer"]["member"] == member
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert again.model_config == wrapped.model.config


def test_wrap_copies_nothing_and_a_config_alone_starts_like_our_model():
    model = model_of()
    assert hf.EveryformerForCausalLM.wrap(model).model is model
    config = hf.EveryformerConfig(model.config)
    torch.manual_seed(5)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    torch.manual_seed(5)
    ours = ef.create_model("gpt", vocabulary=30, width=16, layers=2, heads=2, max_length=40)
    state = theirs.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in ours.state_dict().items())


def test_weights_missing_from_a_checkpoint_start_as_our_models_start(tmp_path):
    from safetensors.torch import load_file, save_file

    wrapped = hf.EveryformerForCausalLM.wrap(model_of("gmlp"))
    wrapped.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.stack.blocks.0.mixer.bias"]
    save_file(tensors, path, metadata={"format": "pt"})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    mixers = [block.mixer for block in loaded.model.stack.blocks]
    assert torch.equal(mixers[0].bias, torch.ones_like(mixers[0].bias))
    kept = wrapped.model.stack.blocks[0].mixer.spatial
    assert torch.equal(mixers[0].spatial, kept)


@pytest.mark.parametrize("member", MEMBERS)
def test_generation_with_a_state_equals_recomputation_and_our_own(member):
    model = model_of(member)
    wrapped = hf.EveryformerForCausalLM.wrap(model)
    tokens, mask = padded()
    call = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    got = wrapped.generate(tokens, **call)
    assert torch.equal(got, wrapped.generate(tokens, use_cache=False, **call))
    padding_mask, greedy = (
        ef.Mask(padding_mask=mask.bool()),
        importlib.import_module("everyformer.generation.config").Sampling(temperature=0),
    )
    ours = ef.generate(model, tokens, tokens=12, mask=padding_mask, sampling=greedy)
    assert torch.equal(got[:, 9:], ours)
    alone = wrapped.generate(tokens[1:, 4:], max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert torch.equal(got[1:, 4:], alone)


@pytest.mark.parametrize("member", ["gpt", "gmlp"])
def test_beams_with_a_state_equal_beams_without(member):
    wrapped = hf.EveryformerForCausalLM.wrap(model_of(member))
    tokens, mask = padded()
    call = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": 4, "do_sample": False,
            "num_return_sequences": 2, "pad_token_id": 0}  # fmt: skip
    with_state = wrapped.generate(tokens, use_cache=True, **call)
    assert torch.equal(with_state, wrapped.generate(tokens, use_cache=False, **call))


def test_a_member_without_a_state_generates_by_recomputation(monkeypatch):
    model = model_of("aft-simple")
    wrapped = hf.EveryformerForCausalLM.wrap(model)
    call = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = wrapped.generate(tokens_of(), **call)

    def refuse(*_, **__):
        raise UnsupportedError("no exact streaming form")

    monkeypatch.setattr(model, "init_state", refuse)
    assert torch.equal(wrapped.generate(tokens_of(), **call), expected)
    assert list(wrapped(tokens_of(), use_cache=True)) == ["logits"]
    with pytest.raises(UnsupportedError, match="streaming"):
        wrapped(tokens_of(), past_key_values=hf.EveryformerCache())


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_any_split_with_a_cache_equals_one_pass(name):
    """By either name; what comes back has that of the installed version, which its models have."""
    [theirs] = {"cache", "past_key_values"} & {
        *signature(transformers.LlamaModel.forward).parameters
    }
    wrapped = hf.EveryformerForCausalLM.wrap(model_of("aft-local"))
    tokens, mask = padded()
    whole = wrapped(tokens, attention_mask=mask).logits
    cache, parts, start = hf.EveryformerCache(), [], 0
    for size in (5, 1, 3):
        out = wrapped(tokens[:, start : start + size], attention_mask=mask[:, : start + size],
                      **{name: cache})  # fmt: skip
        assert list(out) == ["logits", theirs]
        assert out[theirs] is cache
        start += size
        assert cache.get_seq_length() == start
        parts.append(out.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real])


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_last_logits_alone_are_those_of_all(count):
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    whole, kept = wrapped(tokens_of()).logits, wrapped(tokens_of(), logits_to_keep=count).logits
    torch.testing.assert_close(kept, whole[:, -count:])


def test_labels_are_moved_by_one_as_hugging_face_does():
    model = model_of("aft-conv")
    wrapped = hf.EveryformerForCausalLM.wrap(model)
    tokens = tokens_of()
    labels = tokens.masked_fill(torch.rand(tokens.shape) < 0.3, -100)
    shifted = torch.cat((labels[:, 1:], torch.full((2, 1), -100)), 1)
    expected = model(tokens, targets=shifted).loss
    torch.testing.assert_close(wrapped(tokens, labels=labels).loss, expected)
    logits = wrapped(tokens).logits
    loss, same = wrapped(tokens, labels=labels, return_dict=False)
    torch.testing.assert_close((loss, same), (expected, logits))
    whole = wrapped(tokens, labels=labels, num_items_in_batch=7).loss
    torch.testing.assert_close(whole * 7, expected * (shifted != -100).sum())


OBJECTIVES = {
    "depth-adaptive": {},
    "calm": {"confidence": "classifier"},
    "adaptive-span": {"penalty": 0.1, "start": 0.5},
    "attention": {"layer_losses": True, "lookahead": 0.5, "label_smoothing": 0.1},
    "universal": {"tau": 0.1, "dropout": 0.0, "embedding_dropout": 0.0},
}
"""members with losses of their own; the first two draw the layers at which tokens leave"""


@pytest.mark.parametrize("member", OBJECTIVES)
def test_in_training_the_loss_is_the_models_own_and_reaches_all_weights(member):
    model = model_of(member, **OBJECTIVES[member]).train()
    tokens = tokens_of(4)
    torch.manual_seed(1)
    expected = model(tokens, targets=torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100))
    assert len(expected.losses) > 1 or member == "calm"
    torch.manual_seed(1)
    loss = hf.EveryformerForCausalLM.wrap(model)(tokens, labels=tokens).loss
    torch.testing.assert_close(loss, expected.loss)
    loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize("member", ["adaptive-span", "attention", "universal"])
@pytest.mark.parametrize("pieces", [4])
def test_pieces_of_a_batch_add_up_to_its_gradient(member, pieces):
    wrapped = hf.EveryformerForCausalLM.wrap(model_of(member, **OBJECTIVES[member]).double())
    wrapped.train()
    tokens = tokens_of(4)
    scored = torch.tensor(tokens[:, 1:].numel())

    def gradients(parts):
        wrapped.zero_grad()
        for part in tokens.chunk(parts):
            torch.manual_seed(1)
            wrapped(part, labels=part, num_items_in_batch=scored).loss.backward()
        return [weight.grad.clone() for weight in wrapped.parameters()]

    torch.testing.assert_close(gradients(pieces), gradients(1))


def test_embeddings_given_are_those_looked_up():
    wrapped = hf.EveryformerForCausalLM.wrap(model_of("aft-conv", position="sinusoidal"))
    tokens = tokens_of()
    given = wrapped.get_input_embeddings()(tokens)
    torch.testing.assert_close(wrapped(inputs_embeds=given).logits, wrapped(tokens).logits)
    call = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = wrapped.generate(tokens, **call)[:, tokens.shape[1] :]
    assert torch.equal(wrapped.generate(inputs_embeds=given, **call), expected)


def test_what_says_nothing_is_taken_whatever_its_name():
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    nothing = {"cash": None, "token_type_ids": torch.zeros(2, 9, dtype=torch.long), "heads": []}
    assert torch.equal(wrapped(tokens_of(), **nothing).logits, wrapped(tokens_of()).logits)


def test_positions_that_restart_are_packed_documents():
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    tokens = tokens_of(1, 9)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]])
    got = wrapped(tokens, position_ids=positions).logits
    parts = [wrapped(part).logits for part in tokens.split([4, 2, 3], dim=1)]
    torch.testing.assert_close(got, torch.cat(parts, 1))
    assert torch.equal(wrapped(tokens, position_ids=torch.arange(9)[None]).logits,
                       wrapped(tokens).logits)  # fmt: skip


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.filterwarnings("ignore")
def test_packed_documents_stay_apart_in_a_graph():
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    compiled = torch.compile(wrapped, backend="eager")
    tokens = tokens_of(1, 9)
    for positions in ([0, 1, 2, 3, 0, 1, 0, 1, 2], [*range(9)]):
        given = torch.tensor([positions])
        expected = wrapped(tokens, position_ids=given).logits
        for ones in ({}, {"attention_mask": torch.ones_like(tokens)}):
            logits = compiled(tokens, position_ids=given, **ones).logits
            torch.testing.assert_close(logits, expected)
    rows, mask = padded()
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    real, hidden = mask.bool(), {"attention_mask": mask, "position_ids": counted}
    torch.testing.assert_close(compiled(rows, **hidden).logits[real],
                               wrapped(rows, **hidden).logits[real])  # fmt: skip
    assert not torch.allclose(wrapped(tokens).logits, wrapped(tokens, position_ids=torch.tensor(
        [[0, 1, 2, 3, 0, 1, 0, 1, 2]])).logits)  # fmt: skip


@pytest.mark.full("their trainer, seconds")
def test_their_trainer_smooths_the_labels_of_a_causal_model(tmp_path):
    """Labels that are not moved by one teach a model to say what it reads."""
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    wrapped = hf.EveryformerForCausalLM.wrap(model_of("aft-simple", vocabulary=8)).train()
    tokens = (torch.arange(12) * 3 + torch.arange(4)[:, None]) % 8
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    options = transformers.TrainingArguments(
        str(tmp_path), max_steps=60, learning_rate=1e-2, label_smoothing_factor=0.1, report_to=[],
        per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True,
        activation_checkpointing=True, disable_tqdm=True, save_strategy="steps", save_steps=60,
        logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    transformers.Trainer(wrapped, options, train_dataset=rows).train()
    assert wrapped.model.stack.checkpointing
    said = wrapped.eval()(tokens).logits
    assert (said.argmax(-1)[:, :-1] == tokens[:, 1:]).float().mean() > 0.9
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-60")
    torch.testing.assert_close(loaded(tokens).logits, said)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (UnsupportedError, "position_ids", {"position_ids": torch.arange(9)[None] + 3}),
        (ShapeError, "attention_mask", {"attention_mask": torch.ones(2, 1, 9, 9)}),
        (ShapeError, "attention_mask", {"attention_mask": torch.ones(2, 5)}),
        (UnsupportedError, "EveryformerCache", {"past_key_values": transformers.DynamicCache()}),
        (UnsupportedError, "EveryformerCache", {"cache": transformers.DynamicCache()}),
        (ConfigError, "two names", dict.fromkeys(("cache", "past_key_values"), 1)),
        (UnsupportedError, "does not know cash:", {"cash": hf.EveryformerCache()}),
        (UnsupportedError, "does not know flag:", {"flag": False}),
        (UnsupportedError, "token_type_ids", {"token_type_ids": torch.eye(9)[None].long()}),
        (UnsupportedError, "ef.trace", {"output_attentions": True}),
        (ConfigError, "input_ids", {"inputs_embeds": torch.zeros(2, 9, 16)}),
        (ConfigError, "labels", {"labels": tokens_of(), "logits_to_keep": 1}),
        (UnsupportedError, "logits_to_keep", {"logits_to_keep": torch.tensor([3])}),
    ],
)
def test_what_cannot_be_honoured_is_an_error(error, words, call):
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    with pytest.raises(error, match=words):
        wrapped(tokens_of(), **call)


def test_wrong_configs_and_caches_are_errors():
    with pytest.raises(ConfigError, match="did you mean 'width'"):
        hf.EveryformerConfig({"widht": 3})
    classifier = ef.create_model("attention", "classify-text").config
    with pytest.raises(ConfigError, match="classify-text"):
        hf.EveryformerConfig(classifier)
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    with pytest.raises(UnsupportedError, match="static"):
        wrapped.generate(tokens_of(), cache_implementation="static", max_new_tokens=2)
    with pytest.raises(UnsupportedError, match="forget"):
        hf.EveryformerCache().crop(1)


def test_more_tokens_in_the_vocabulary_are_saved_and_loaded(tmp_path):
    wrapped = hf.EveryformerForCausalLM.wrap(model_of())
    wrapped.resize_token_embeddings(33)
    wrapped.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded(tokens_of()).logits.shape == (2, 9, 33)
    assert torch.equal(loaded(tokens_of()).logits, wrapped(tokens_of()).logits)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "everyformer.interop.hf")
    with pytest.raises(MissingExtraError, match=r"everyformer\[hf\]"):
        importlib.import_module("everyformer.interop.hf")
