"""Scaled rotations by their identities, and against Hugging Face's tables of frequencies."""

import math

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.mask import lengths_of
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate
from everyformer.genes.positions.rope import Rope, rotate, rotate_reference
from everyformer.genes.positions.rope_scaling import RopeScaling, rates, rates_reference
from helpers import with_gradients

SHORT, LONG = tuple(1 + m / 8 for m in range(8)), tuple(2.0 + m for m in range(8))
KINDS = {
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 3.0, "original_length": 10},
    "yarn": {"factor": 4.0, "original_length": 64},
    "yarn, whole ramp": {"factor": 4.0, "original_length": 64, "truncate": False},
    "yarn, sharp": {"factor": 8.0, "original_length": 512, "beta_fast": 4.0, "beta_slow": 3.9}
    | {"attention_factor": 1.3},
    "llama3": {"factor": 8.0, "original_length": 100},
    "llama3, narrow": {"factor": 3.0, "original_length": 64}
    | {"low_frequency": 2.0, "high_frequency": 2.5},
    "longrope": {"factor": 4.0, "original_length": 10, "short": SHORT, "long": LONG},
}
NAMES = {
    "original_length": "original_max_position_embeddings",
    "low_frequency": "low_freq_factor",
    "high_frequency": "high_freq_factor",
    "short": "short_factor",
    "long": "long_factor",
}
LENGTHS = (3, 10, 11, 47)
BY_LENGTH = ("dynamic", "longrope")


def scaling(case):
    return RopeScaling(kind=case.split(",")[0], **KINDS[case])


def their_config(case, longest=10):
    from transformers import LlamaConfig

    given = {NAMES.get(k, k): v for k, v in KINDS[case].items()}
    given |= {k: list(v) for k, v in given.items() if isinstance(v, tuple)}
    given |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} | given
    given |= {"rope_type": scaling(case).kind, "rope_theta": 500.0}
    sizes = {"hidden_size": 48, "num_attention_heads": 3, "max_position_embeddings": longest}
    return LlamaConfig(**sizes, rope_parameters=given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", [case for case in KINDS if case != "ntk"])
def test_angles_are_those_of_hugging_face(case, length):
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    chosen = scaling(case)
    theirs, size = utils.ROPE_INIT_FUNCTIONS[chosen.kind](their_config(case), seq_len=length)
    theta, ours = rates(torch.arange(length)[None], 8, 500.0, chosen)
    theta = theta[0, 0, -1] if theta.dim() > 1 else theta
    torch.testing.assert_close(theta.float(), theirs, rtol=2e-6, atol=0)
    assert ours == pytest.approx(size)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("case", KINDS)
def test_rotation_equals_its_definition_with_gradients(case, layout):
    positions = torch.tensor([[0, 1, 2, 17, 30], [0, 1, 2, 3, 4]])
    q = torch.randn(2, 3, 5, 16).double().requires_grad_()
    how = {"layout": layout, "scaling": scaling(case)}
    turned = [form(q, positions, **how) for form in (rotate, rotate_reference)]
    torch.testing.assert_close(*(with_gradients(side, [q]) for side in turned))


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"])
def test_a_factor_of_one_is_no_scaling(kind):
    flat = {"short": (1.0,) * 8, "long": (1.0,) * 8}
    # the formula of dynamic scaling has T/L beside the factor, so that it is one up to L alone
    length = 50 if kind == "dynamic" else 20
    more = {} if kind in ("linear", "ntk") else {"original_length": length}
    more |= flat if kind == "longrope" else {}
    q, positions = torch.randn(1, 2, 50, 16).double(), torch.arange(50)[None]
    scaled = rotate(q, positions, scaling=RopeScaling(kind=kind, factor=1.0, **more))
    torch.testing.assert_close(scaled, rotate(q, positions))


def test_ntk_keeps_the_fastest_pair_and_divides_the_slowest_by_the_factor():
    plain, _ = rates(torch.zeros(1, 1), 8, 1e4, RopeScaling())
    theta, _ = rates(torch.zeros(1, 1), 8, 1e4, scaling("ntk"))
    assert theta[0] == plain[0]
    assert float(plain[-1] / theta[-1]) == pytest.approx(4.0)


@pytest.mark.parametrize(("length", "same"), [(1, True), (10, True), (11, False), (30, False)])
def test_dynamic_scaling_begins_beyond_the_original_length(length, same):
    q, positions = torch.randn(1, 2, length, 16).double(), torch.arange(length)[None]
    scaled = rotate(q, positions, scaling=scaling("dynamic"))
    assert torch.allclose(scaled, rotate(q, positions)) == same
    grown = RopeScaling(kind="ntk", factor=max(3 * length / 10 - 2, 1.0))
    torch.testing.assert_close(scaled, rotate(q, positions, scaling=grown))


def test_llama3_has_the_released_numbers_where_none_are_given():
    assert RopeScaling(kind="llama3") == RopeScaling("llama3", 8.0, 8192)


@pytest.mark.parametrize("case", KINDS)
def test_a_part_of_a_text_turns_as_in_the_whole_where_its_length_is_said(case):
    options = {"scaling": {"kind": scaling(case).kind, **KINDS[case]}}
    rope = Rope(width=32, heads=2, options=options)
    q, positions = torch.randn(1, 2, 31, 16).double(), torch.arange(31)[None]
    whole, part = rope.rotate(q, positions), slice(4, 9)
    said = rope.rotate(q[:, :, part], positions[:, part], torch.tensor([[31]]))
    torch.testing.assert_close(said, whole[:, :, part], rtol=0, atol=1e-14)
    # nine tokens are within the original length of every kind that goes by it, 31 beyond
    alone = rope.rotate(q[:, :, part], positions[:, part])
    assert torch.allclose(alone, said) == (scaling(case).kind not in BY_LENGTH)


def test_generation_recomputes_where_angles_change_with_the_length():
    torch.manual_seed(0)
    options = {"kind": "dynamic", "factor": 3.0, "original_length": 6}
    model = ef.create_model("rope", width=16, layers=2, heads=2, scaling=options).eval()
    with pytest.raises(UnsupportedError, match=r"angles of all tokens change.*recompute"):
        model.init_state(1)
    tokens = torch.randint(0, 256, (1, 4))
    got = generate(model, tokens, tokens=6, sampling=Sampling(temperature=0.0))
    for _ in range(6):
        tokens = torch.cat((tokens, model(tokens).logits[:, -1:].argmax(-1)), 1)
    assert torch.equal(got, tokens[:, 4:])


def test_a_part_of_the_channels_is_scaled_by_its_own_size():
    options = {"fraction": 0.5, "scaling": {"kind": "yarn", "factor": 4.0, "original_length": 64}}
    rope = Rope(width=32, heads=2, options=options)
    q, positions = torch.randn(1, 2, 9, 16).double(), torch.arange(9)[None]
    turned = rope.rotate(q, positions)
    assert torch.equal(turned[..., 8:], q[..., 8:])
    expected = rotate(q[..., :8], positions, scaling=rope.options.scaling)
    torch.testing.assert_close(turned[..., :8], expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "linear"}, "'linear' needs `factor`"),
        ({"kind": "yarn", "factor": 2.0}, "'yarn' needs `original_length`"),
        ({"kind": "dynamic", "original_length": 9}, "'dynamic' needs `factor`"),
        ({"kind": "linear", "factor": 0.5}, "must be at least 1"),
        ({"kind": "linear", "factor": 2.0, "beta_fast": 8.0}, "no `beta_fast`; it reads factor"),
        ({"kind": "yaren", "factor": 2.0}, "did you mean 'yarn'"),
        ({"factor": 2.0}, "'none' reads no `factor`"),
        ({"kind": "llama3", "low_frequency": 4.0}, "must be less than high_frequency"),
        ({"kind": "longrope", "factor": 2.0, "original_length": 9, "short": (1.0,)}, "of 4 pairs"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        ef.create_model("rope", width=16, heads=2, scaling=given)


RAMPS = [
    # L, beta_fast, beta_slow, truncate, pairs that keep their rate, share of 1/s of the others
    # 16 ln(20000 / 64 pi) / (2 ln 500) = 5.92 and 16 ln(20000 / 2 pi) / (2 ln 500) = 10.38: a ramp
    # from 5 to 11, beyond the last of eight pairs
    (20_000, 32.0, 1.0, True, 6, (1 / 6, 2 / 6)),
    # 16 ln(64 / 8 pi) / (2 ln 500) = 1.2033 for both: a step
    (64, 4.0, 4.0, False, 2, (1.0,) * 6),
    # both ends below the first pair, whose rate stays
    (6, 4.0, 2.0, True, 1, (1.0,) * 7),
]


@pytest.mark.parametrize(("length", "fast", "slow", "truncate", "kept", "shares"), RAMPS)
def test_yarns_ramp_lies_where_its_turns_are(length, fast, slow, truncate, kept, shares):
    """Eight pairs at a base of 500, four times longer: theta_m (1 - r_m + r_m / 4)."""
    scaling = RopeScaling(
        kind="yarn", factor=4.0, original_length=length, beta_fast=fast, beta_slow=slow,
        truncate=truncate,
    )  # fmt: skip
    ramp = [0.0] * kept + list(shares)
    expected = [500 ** (-m / 8) * (1 - r + r / 4) for m, r in enumerate(ramp)]
    found, factor = rates(torch.arange(3)[None], 8, 500.0, scaling)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert rates_reference(8, 500.0, scaling, 3)[0] == pytest.approx(expected, rel=1e-12)
    assert factor == pytest.approx(1 + 0.1 * math.log(4))


@pytest.mark.parametrize(
    ("positions", "lengths"),
    [
        ([0, 1, 2, 3], [4, 4, 4, 4]),
        ([0, 1, 1, 2, 0, 1, 0, 0, 5], [3, 3, 3, 3, 2, 2, 1, 6, 6]),
        # a sequence begins at 0, or where positions fall back
        ([3, 4, 5, 2, 3], [6, 6, 6, 4, 4]),
        ([9, 1, 0, 1, 2, 7, 6], [10, 2, 8, 8, 8, 8, 7]),
    ],
)
def test_positions_that_fall_begin_a_sequence(positions, lengths):
    assert lengths_of(torch.tensor([positions])).tolist() == [lengths]
