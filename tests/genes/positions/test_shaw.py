"""Shaw's relative vectors by their identities, and against Wav2Vec2-BERT of Hugging Face."""

import pytest
import torch

from everyformer.core.errors import ConfigError
from helpers import build_mixer, covering, with_gradients

DIRECTIONS = pytest.mark.parametrize("causal", [True, False])
CLIPS = [0, 1, (2, 4), (5, 0), 16, 30]


def mixer(causal=False, heads=3, mixer_options=None, **options):
    return build_mixer(
        "attention", width=12, heads=heads, causal=causal, position="shaw",
        position_options=options, **(mixer_options or {}),
    )  # fmt: skip


def by_the_pair(made, x):
    """The equation with a^K and a^V of every pair written out: L x S x D numbers, one einsum."""
    q, k, v = made.project(x)
    position, length = made.position, x.shape[1]
    here = torch.arange(length)
    rows = (here[None] - here[:, None]).clamp(-position.left, position.right) + position.left
    keys = position.key_table.expand(made.heads, -1, -1)[:, rows]
    values = position.value_table.expand(made.heads, -1, -1)[:, rows]
    scores = torch.einsum("bhid,bhijd->bhij", q, k[:, :, None] + keys) / q.shape[-1] ** 0.5
    if made.causal:
        scores = scores.masked_fill(here[None] > here[:, None], -torch.inf)
    y = torch.einsum("bhij,bhijd->bhid", scores.softmax(-1), v[:, :, None] + values)
    return made.out(y.transpose(1, 2).flatten(2))


@covering(causal=[True, False], clip=CLIPS, more=[{}, {"per_head": True}])
def test_output_and_gradients_equal_the_einsum_over_all_pairs(causal, clip, more):
    made, x = mixer(causal, clip=clip, **more), torch.randn(2, 13, 12).double()
    sides = (made(x).y, by_the_pair(made, x))
    found = (with_gradients(side, list(made.parameters())) for side in sides)
    torch.testing.assert_close(*found)


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 13, 700])
def test_vectors_farther_than_a_text_is_long_are_not_read(causal, length):
    clip, near = 5000, 800
    wide, narrow = mixer(causal, clip=clip), mixer(causal, clip=near)
    names = "key_table", "value_table"
    for name in names:
        table = getattr(wide.position, name).data
        last = clip + 1 if causal else clip + near + 1
        getattr(narrow.position, name).data = table[:, clip - near : last].clone()
        table[:, : clip - length + 1] = torch.nan
        if not causal:
            table[:, clip + length :] = torch.nan
    narrow.project.load_state_dict(wide.project.state_dict())
    narrow.out.load_state_dict(wide.out.state_dict())
    x = torch.randn(1, length, 12).double()
    torch.testing.assert_close(wide(x).y, narrow(x).y)


@pytest.mark.parametrize(("left", "right"), [(3, 3), (4, 2), (1, 0), (0, 5), (20, 20)])
def test_keys_equal_wav2vec2_bert(left, right):
    module = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    from transformers import Wav2Vec2BertConfig

    config = Wav2Vec2BertConfig(
        hidden_size=12, num_attention_heads=3, position_embeddings_type="relative_key",
        left_max_position_embeddings=left, right_max_position_embeddings=right,
        attn_implementation="eager", attention_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = module.Wav2Vec2BertSelfAttention(config).double().eval()
    biases = {"bias": ("query", "key", "value", "output")}
    ours = mixer(clip=(left, right), values=False, mixer_options=biases)
    parts = (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    ours.project.weights[0].data = torch.cat([part.weight for part in parts])
    for name, part in zip(("query", "key", "value"), parts, strict=True):
        ours.project.biases[name].data = part.bias.data
    ours.out.load_state_dict(theirs.linear_out.state_dict())
    ours.position.key_table.data = theirs.distance_embedding.weight[None]
    x = torch.randn(2, 11, 12).double()
    torch.testing.assert_close(ours(x).y, theirs(x)[0])


@pytest.mark.parametrize(("options", "said"), [
    ({"clip": -1}, "clip` must be at least 0"),
    ({"keys": False, "values": False}, "adds nothing"),
])  # fmt: skip
def test_options_without_meaning_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        mixer(**options)


def test_values_of_another_width_get_vectors_of_theirs():
    made = mixer(clip=3, mixer_options={"widths": {"key_dim": 6, "value_dim": 5}})
    assert made.position.value_table.shape[-1] == 5
    x = torch.randn(1, 7, 12).double()
    torch.testing.assert_close(made(x).y, by_the_pair(made, x))
