"""Attention for some of its queries is a part of attention for all."""

from typing import Any

import torch

from everyformer.core.mask import Mask
from everyformer.core.subset import TokenSubset
from helpers import build_mixer, close, covering, draw, shifted
from sequence_laws.flops import count_flops

WIDTH, LENGTH = 12, 9
TOKENS = torch.tensor([[0, 3, 4, 8], [1, 2, 7, 1]])
ALL = torch.ones_like(TOKENS, dtype=torch.bool)
CHOSEN = {
    "both": TokenSubset(TOKENS, ALL),
    "first": TokenSubset(TOKENS[:1], ALL[:1], torch.tensor([0])),
    "second": TokenSubset(TOKENS[1:], ALL[1:], torch.tensor([1])),
}
"""tokens of two rows, or of one"""
MASKS: dict[str, Any] = {
    "bare": lambda: None,
    "padded": lambda: Mask(padding_mask=torch.arange(LENGTH)[None] >= torch.tensor([[2], [0]])),
    "packed": lambda: Mask(documents=torch.tensor([[5, 5, 5, 1, 1, 1, 1, 2, 2]] * 2)),
    "pairs": lambda: Mask(
        attention_mask=draw(2, 1, LENGTH, LENGTH) > -1, bias=draw(3, LENGTH, LENGTH, seed=2)
    ),
    "keys": lambda: Mask(attention_mask=draw(1, LENGTH) > -1),
}
"""masks of two rows"""
SCALING = {"kind": "dynamic", "factor": 3.0, "original_length": 2}
DYNAMIC: dict[str, Any] = {"position": "rope", "position_options": {"scaling": SCALING}}
"""angles that follow from the length of a text, of which its last token need not be chosen"""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"position": "rope"},
    {"position": "alibi"},
    {"position": "t5-relative"},
    {"position": "shaw"},
    {"position": "xl-relative"},
    {"position": "da-transformer"},
    {"window": (2, None, 5)},
    {"window": 3},
    {"kv_heads": 1, "bias": ("query", "key", "value", "output"), "qk_norm": True},
    {"sink": True, "softcap": 3.0},
]


@covering(options=[*OPTIONS, DYNAMIC], causal=[True, False], mask=MASKS, rows=CHOSEN)
def test_some_queries_are_a_part_of_all(options: Any, causal: bool, mask: str, rows: str) -> None:
    own = {"width": WIDTH, "heads": 3, "causal": causal, "max_length": 20, **options}
    mixer: Any = shifted(build_mixer("attention", **own))
    x, given, chosen = draw(2, LENGTH, WIDTH), MASKS[mask](), CHOSEN[rows]
    got = mixer.answer(x, chosen, given, None).y
    real = real_of(chosen, given)
    close(got[real], chosen.pick(mixer(x, mask=given).y)[real])


def real_of(chosen: TokenSubset, mask: Any) -> Any:
    """Which of the chosen tokens are no padding."""
    padded = mask is not None and mask.padding_mask is not None
    return chosen.pick(mask.padding_mask) if padded else chosen.real


@covering(options=OPTIONS, mask=["bare", "padded", "pairs"], rows=CHOSEN)
def test_behind_a_state_too(options: Any, mask: str, rows: str) -> None:
    own = {"width": WIDTH, "heads": 3, "causal": True, "max_length": 20, **options}
    mixer: Any = shifted(build_mixer("attention", **own))
    x, given, chosen = draw(2, LENGTH, WIDTH), MASKS[mask](), CHOSEN[rows]
    before = mixer(draw(2, 4, WIDTH, seed=3), state=mixer.init_state(2)).state
    got, whole = mixer.answer(x, chosen, given, before), mixer(x, mask=given, state=before)
    real = real_of(chosen, given)
    close(got.y[real], chosen.pick(whole.y)[real])
    assert got.state.keys.shape == whole.state.keys.shape
    later = draw(2, 2, WIDTH, seed=4)
    close(mixer(later, state=got.state).y, mixer(later, state=whole.state).y)


def test_what_they_cost() -> None:
    mixer: Any = build_mixer("attention", width=64, heads=4, causal=True)
    x, few = draw(1, 64, 64), TokenSubset.of(torch.arange(64)[None] % 8 == 0)
    counted = count_flops(lambda: mixer.answer(x, few, None, None))
    # keys and values of 64 tokens, queries and outputs of 8, scores and values of 8 by 64
    assert counted == 2 * 64 * 64 * (2 * 64 + 2 * 8) + 2 * 2 * 8 * 64 * 64
    assert mixer.supports_subset
    remembers = build_mixer("attention", width=12, heads=2, causal=True, memory="segment")
    assert not remembers.supports_subset
