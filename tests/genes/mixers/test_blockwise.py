"""Blockwise attention: blocks, permutations and their causal form."""

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError, ShapeError
from everyformer.core.mask import Mask
from helpers import in_pieces

WIDTH, HEADS, LENGTH = 12, 3, 23


def make(**options):
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": HEADS, "causal": False, "max_length": 24}
    return ef.create_mixer("blockwise", **{**sizes, **options}).double()


def tokens(length=LENGTH):
    torch.manual_seed(1)
    return torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)


def sees(mixer, length=LENGTH):
    return mixer.plan(length).mask(length, HEADS).expand(HEADS, -1, -1)


def test_a_shift_reads_the_block_so_far_on_and_around_the_end():
    mask = sees(make(blocks=3, groups=(1, 1, 1)))
    block = torch.arange(LENGTH) // 8
    for shift in range(HEADS):
        assert_close(mask[shift], (block[:, None] + shift) % 3 == block)


@pytest.mark.parametrize(("length", "block"), [(24, 8), (23, 8), (22, 8), (21, 7)])
def test_blocks_are_as_long_as_they_need_to_be(length, block):
    mixer = make(blocks=3, max_length=length)
    assert mixer.block == block
    x = tokens(length)
    assert_close(mixer(x).y, mixer.reference(x))


def test_a_causal_head_reads_the_block_so_far_back():
    mask = sees(make(blocks=3, groups=(1, 1, 1), causal=True))
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    for shift in range(HEADS):
        own = (j // 8 == i // 8) & (j <= i)
        back = (j // 8 == i // 8 - shift) & (j <= i)
        assert_close(mask[shift], back | (own & (i // 8 < shift)))


def test_keys_that_are_padding_alone_give_zero():
    mixer, x = make(blocks=2, groups=(0, 3)), tokens(24)
    padding_mask = torch.ones(2, 24, dtype=torch.bool)
    padding_mask[:, 10:] = False
    y = mixer(x, mask=Mask(padding_mask=padding_mask)).y
    # the second block is padding, so the first sees nothing
    assert not y.any()


def test_a_state_holds_as_many_blocks_as_the_farthest_shift_needs():
    mixer, x = make(blocks=6, groups=(2, 1), causal=True, block_size=4), tokens()
    with torch.no_grad():
        for length in range(1, LENGTH):
            y, state = in_pieces(mixer, x[:, :length], 1)
            assert state.keys.shape[2] <= 2 * 4 - 1
        assert_close(y, mixer(x[:, :length]).y)


def test_most_heads_stay_in_their_block():
    mixer = ef.create_mixer("blockwise", width=24, heads=12, max_length=24, blocks=2)
    assert [union[0].table[0][0] for union in mixer.plan(24).heads] == [(0,)] * 10 + [(1,)] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"groups": (1, 1)}, "heads=3"),
        ({"blocks": 2, "groups": (1, 1, 1)}, "0 to 1 blocks"),
        ({"max_length": None}, "max_length"),
        ({"block_size": 8}, "hold 16 tokens, but `max_length=24`: give `blocks=3`"),
    ],
)
def test_what_cannot_be_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        make(**options)


def test_a_text_longer_than_its_blocks_is_refused():
    with pytest.raises(ShapeError, match="max_length=24"):
        make()(tokens(25))
