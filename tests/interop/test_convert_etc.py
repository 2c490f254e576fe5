"""A model of standard attention goes on as an ETC."""

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.genes.model_options import SummaryOptions
from everyformer.interop.convert.etc import lift_to_etc

SIZES = {"width": 12, "heads": 3, "layers": 2, "vocabulary": 30, "max_length": 10}


def bert(task="mlm", **options):
    torch.manual_seed(0)
    model = ef.create_model("bert", task, **{**SIZES, **options})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize("sharing", ["all", "sides", "none"])
def test_without_global_tokens_and_within_the_radius_it_is_the_same_model(sharing):
    model, tokens = bert(), torch.randint(0, 30, (2, 10))
    lifted, report = lift_to_etc(
        model, length=25, sharing=sharing, radius=10, summaries=SummaryOptions()
    )
    assert_close(lifted(tokens).logits, model(tokens).logits)
    assert report.left == []
    assert {name.split(".")[-2] for name in report.made} == {"long_labels", "summary_labels"}


def test_a_layer_with_a_global_token_reads_both_kinds_as_attention_would():
    # global queries have the same projections: a layer reads [global; long] as attention would
    model, tokens = bert(layers=1), torch.randint(0, 30, (1, 10))
    lifted = lift_to_etc(model, radius=10, hard_g2l=False).model
    x = torch.randn(1, 11, 12, dtype=torch.float64)
    mask = ef.Mask(global_tokens=torch.arange(11)[None] == 0)
    before, after = model.stack.blocks[0].mixer, lifted.stack.blocks[0].mixer
    assert_close(after(x, mask=mask).y, before(x).y)
    assert lifted(tokens).logits.shape == (1, 10, 30)


def test_learned_positions_are_repeated():
    table = lift_to_etc(bert(), length=25).model.position.table
    assert_close(table[10:20], table[:10])
    assert_close(table[20:], table[:5])


def test_a_classifier_goes_on_too():
    lifted = lift_to_etc(bert("classify-text", pooling="first")).model
    assert lifted(torch.randint(0, 30, (2, 9))).logits.shape == (2, 2)


def test_a_shorter_text_is_refused():
    with pytest.raises(ConfigError, match="length=9 is shorter than the 10 tokens"):
        lift_to_etc(bert(), length=9)


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (lambda: ef.create_model("gpt", **SIZES), UnsupportedError, "task lm, causal"),
        (lambda: ef.create_model("linformer", "mlm", **SIZES), UnsupportedError, "mixer linformer"),
        (
            lambda: ef.create_model("attention", "mlm", window=4, **SIZES),
            UnsupportedError,
            "window=4",
        ),
        (lambda: bert("classify-text", pooling="class"), GeneError, "pooling='globals'"),
        (
            lambda: ef.create_model("attention", "mlm", position="rope", **SIZES),
            GeneError,
            "no place|acts on",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused(model, error, says):
    with pytest.raises(error, match=says):
        lift_to_etc(model())
