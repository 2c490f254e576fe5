"""Models: every member builds every task it names, pads, pools, schedules and trains."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.genes.residuals.pre import PreNorm
from helpers import feeds

torch.manual_seed(0)


def test_options_differ_by_layer():
    model = ef.create_model(
        "attention",
        layers=3,
        mixer=ef.by_layer("attention", "gmlp", "attention"),
        window=ef.by_layer(4, None, (2, 3, 4, 8)),
    )
    kinds = [block.mixer.name for block in model.stack.blocks]
    assert kinds == ["attention", "gmlp", "attention"]
    assert model.stack.blocks[2].mixer.windows == (2, 3, 4, 8)
    with pytest.raises(GeneError, match=r"2 entries.*layers=3"):
        ef.create_model("attention", layers=3, window=ef.by_layer(1, 2))


def test_predictions_after_the_last_tokens_are_those_of_the_whole_and_scored_alone():
    model = ef.create_model("gpt", task="lm", width=16, layers=2, heads=2, vocabulary=11).eval()
    tokens, targets = torch.randint(0, 11, (2, 2, 9)).unbind()
    whole, out = model(tokens), model(tokens, targets=targets, last=3)
    torch.testing.assert_close(out.logits, whole.logits[:, -3:])
    expected = torch.nn.functional.cross_entropy(
        out.logits.flatten(0, 1), targets[:, -3:].flatten()
    )
    torch.testing.assert_close(out.loss, expected)


def test_dropped_paths_keep_the_mean():
    from everyformer.blocks.block import Block
    from everyformer.blocks.options import BlockOptions

    mixer = ef.create_mixer("attention", width=8, heads=2)
    block = Block(mixer, BlockOptions(), PreNorm(), feeds(), drop_path=0.5)
    y = torch.ones(4000, 1, 8)
    assert abs(block._thin(y).mean() - 1) < 0.1
    assert torch.equal(block.eval()._thin(y), y)


WRONG = [
    (lambda: ef.create_model("gmlp", expansion=6), GeneError, "mlp_ratio"),
    (lambda: ef.create_model("atention"), ConfigError, "did you mean 'attention'"),
    (lambda: ef.create_model("attention", "lmm"), ConfigError, "unknown task 'lmm'"),
    (lambda: ef.create_model("attention", widht=8), ConfigError, "did you mean 'width'"),
    (lambda: ef.create_model("gpt", "classify-image"), UnsupportedError, "members that do"),
    (lambda: ef.create_model("attention", "pixels"), GeneError, "needs image"),
    (lambda: ef.create_model("vit", "classify-image", image=(1, 9, 9), patch=4), GeneError,
     "patches that fit: 1, 3, 9"),
    (lambda: ef.create_mixer("rope", width=8), UnsupportedError, "create_model"),
    (lambda: ef.create_mixer("atn", width=8), ConfigError, "unknown mixer"),
    (lambda: ef.create_mixer("gmlp", width=8), GeneError, "needs max_length"),
    (lambda: ef.create_mixer("gmlp", width=8, max_length=0), ConfigError, "at least 1, not 0"),
    (lambda: ef.create_mixer("attention", width=10, heads=4), GeneError, "heads that fit"),
    (lambda: ef.info("aft"), ConfigError, "aft-full"),
    (lambda: ef.create_model("attention")(torch.zeros(1, 3)), ShapeError, "integers"),
    *((lambda mixers=mixers: ef.create_model("attention", heads=2, width=8,
                                             mixer=ef.by_head(*mixers)), ef.EveryformerError, said)
      for mixers, said in ((("attention",), "names 1: give one a head"),
                           (("attention", "gmlp"), "cannot be some of the heads"),
                           (("attention", "aft-simpl"), "did you mean 'aft-simple'"))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_wrong_calls_say_what_to_do(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_heads_of_two_mixers_are_one_output_matrix_over_both():
    split = ef.create_mixer(
        "by-head", width=12, heads=3, causal=True, mixers=("attention", "aft-simple", "attention")
    ).double()
    attention, simple = split.parts
    assert [p.out.in_features for p in (attention, simple)] == [8, 4]
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(split(x).y, attention(x).y + simple(x).y)
    # of one mixer they are that mixer
    whole = ef.create_mixer("attention", width=12, heads=3, causal=True).double()
    split = ef.create_mixer("by-head", width=12, heads=3, causal=True, mixers=("attention",) * 3)
    split.double().load_state_dict({f"parts.0.{k}": v for k, v in whole.state_dict().items()})
    torch.testing.assert_close(split(x).y, whole(x).y)


def test_the_last_norm_may_have_another_eps() -> None:
    sizes = {"width": 8, "layers": 1, "heads": 2, "max_length": 16}
    stack = ef.create_model("sparse-transformer", norm_eps=1e-3, **sizes).stack
    assert (stack.norm.eps, stack.blocks[0].mixer_norm.eps) == (1e-6, 1e-3)
    assert ef.create_model("attention", norm_eps=1e-3, **sizes).stack.norm.eps == 1e-3
