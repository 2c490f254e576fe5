"""Longformer and BigBird of transformers: equal outputs in both directions."""

import logging

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import UnsupportedError
from everyformer.core.mask import Mask
from everyformer.interop.convert import export_checkpoint, import_checkpoint
from everyformer.interop.convert.architecture import ALL_BIASES
from everyformer.interop.convert.bert import OF_BERT

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

LENGTH = 41
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 23,
}  # fmt: skip
LONGFORMER = {**SIZES, "max_position_embeddings": 50, "attention_window": [4, 8]}
BIGBIRD = {
    **SIZES, "max_position_embeddings": 48, "block_size": 4, "num_random_blocks": 1,
    "sep_token_id": 2,
}  # fmt: skip
CASES = {
    "longformer": ("LongformerForMaskedLM", LONGFORMER),
    "longformer, one window, untied": (
        "LongformerForMaskedLM",
        {**LONGFORMER, "attention_window": 6, "tie_word_embeddings": False},
    ),
    "longformer that classifies": (
        "LongformerForSequenceClassification",
        {**LONGFORMER, "num_labels": 3},
    ),
    "bigbird": ("BigBirdForMaskedLM", BIGBIRD),
    "bigbird without biases": (
        "BigBirdForMaskedLM",
        {**BIGBIRD, "use_bias": False, "rescale_embeddings": True, "num_random_blocks": 2},
    ),
    "bigbird, all read all": ("BigBirdForMaskedLM", {**BIGBIRD, "attention_type": "original_full"}),
    "bigbird that classifies": ("BigBirdForSequenceClassification", {**BIGBIRD, "num_labels": 3}),
}


def theirs_of(case, folder):
    name, options = CASES[case]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**options)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


def inputs_of(model):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 22, (2, LENGTH), generator=generator)
    keep = torch.ones_like(tokens)
    # in the last block, since theirs is that of the padded batch
    keep[1, LENGTH - 1 if "bird" in model.config.model_type else 30 :] = 0
    if "bird" in model.config.model_type:
        keep[1, LENGTH - 1] = 1
    tokens[keep == 0] = model.config.pad_token_id
    inputs = {"input_ids": tokens, "attention_mask": keep}
    types = torch.zeros_like(tokens)
    types[:, 4:] = 1
    return {**inputs, "token_type_ids": types}


def our_logits(model, inputs, marked=None):
    mask = Mask(keep=inputs["attention_mask"].bool(), global_tokens=marked)
    return model(inputs["input_ids"], mask=mask, types=inputs["token_type_ids"]).logits


def close(got, expected, inputs):
    if got.dim() == 3:
        real = inputs["attention_mask"].bool()
        got, expected = got[real], expected[real]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_both_directions_give_the_same_logits(case, tmp_path):
    theirs = theirs_of(case, tmp_path / "theirs")
    ours, report = import_checkpoint(tmp_path / "theirs")
    assert report.left == []
    # random blocks are drawn, not learned, and none are saved
    assert [name for name in report.made if not name.endswith(".order")] == []
    inputs = inputs_of(theirs)
    with torch.no_grad():
        expected = theirs(**inputs).logits
        close(our_logits(ours, inputs), expected, inputs)
    kind = theirs.config.model_type
    assert export_checkpoint(ours, tmp_path / "ours", kind).left == []
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    # their BigBird always has one, which guesses nothing
    assert [name for name in info["missing_keys"] if ".pooler." not in name] == []
    assert not info["unexpected_keys"]
    with torch.no_grad():
        close(again.eval()(**inputs).logits, expected, inputs)


def test_global_tokens_of_every_row(tmp_path):
    theirs = theirs_of("longformer", tmp_path)
    ours, inputs = import_checkpoint(tmp_path).model, inputs_of(theirs)
    marked = torch.zeros(2, LENGTH, dtype=torch.bool)
    marked[0, [0, 20]] = marked[1, 3] = True
    with torch.no_grad():
        expected = theirs(**inputs, global_attention_mask=marked.long()).logits
        close(our_logits(ours, inputs, marked), expected, inputs)


@pytest.mark.parametrize("length", [7, 28, 29])
def test_short_texts_are_read_whole_as_there(length, tmp_path):
    theirs = theirs_of("bigbird", tmp_path)
    ours = import_checkpoint(tmp_path).model
    inputs = {name: value[:1, :length] for name, value in inputs_of(theirs).items()}
    with torch.no_grad():
        close(our_logits(ours, inputs), theirs(**inputs).logits, inputs)


def test_the_activation_of_a_bert_is_that_of_its_head_too(tmp_path):
    options = {**SIZES, "max_position_embeddings": 50, "hidden_act": "relu"}
    torch.manual_seed(0)
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**options)).eval()
    theirs.save_pretrained(tmp_path)
    inputs = inputs_of(theirs)
    with torch.no_grad():
        close(
            our_logits(import_checkpoint(tmp_path).model, inputs), theirs(**inputs).logits, inputs
        )


def test_what_their_configs_cannot_say_is_refused(tmp_path):
    sizes = {"width": 16, "heads": 4, "layers": 2, "max_length": 48, "vocabulary": 23}
    sizes |= {**OF_BERT, "token_types": 2, "bias": ALL_BIASES, "norm_eps": 1e-12}
    wrong = {
        "longformer": ({"dilation": 2}, {"global_tokens": 1}),
        "bigbird": ({"random": "uniform"}, {"global_blocks": (0,), "random": "zeros"}),
    }
    for name, options in wrong.items():
        for chosen in options:
            model = ef.create_model(name, "mlm", **sizes, **chosen)
            kind = {"bigbird": "big_bird"}.get(name, name)
            with pytest.raises(UnsupportedError, match=next(iter(chosen))):
                export_checkpoint(model, tmp_path / name, kind)
