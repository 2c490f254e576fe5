"""Factors, shares and loops as the papers and their code print them, written out here."""

import math

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.data.masking import MaskedTextDataset
from everyformer.data.selection import Draws
from everyformer.genes.config import ModelConfig
from everyformer.genes.memory.base import Segment
from everyformer.genes.memory.compressive import CompressiveMemory
from everyformer.models.language import total_loss

WIDTH, HEADS = 64, 4


def mixer(member, causal=False, **options):
    torch.manual_seed(0)
    made = ef.create_mixer(
        member, width=WIDTH, heads=HEADS, causal=causal, max_length=1024, **options
    )
    return made.double()


def test_centroids_start_as_normalised_gaussians():
    """Mean 0 and variance 1 of each over its channels, whose signs are evenly spread."""
    means = mixer("routing").centroids.means
    torch.testing.assert_close(means.mean(-1), torch.zeros_like(means[..., 0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        means.square().mean(-1), torch.ones_like(means[..., 0]), rtol=1e-4, atol=0
    )
    assert abs(means.sign().mean()) < 0.2


@pytest.mark.parametrize(
    ("length", "chunk", "buckets"), [(1024, 64, 32), (4096, 64, 128), (512, 128, 8), (100, 64, 2)]
)
def test_reformer_hashes_into_two_buckets_a_chunk(length, chunk, buckets):
    made = ef.create_mixer("reformer", width=16, heads=2, max_length=length, chunk=chunk)
    assert math.prod(made.factors) == buckets


def rfa_loop(x, made):
    """S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t, z_t alike, y_t = phi(q_t) S_t / phi(q_t) z_t."""
    batch, length, _ = x.shape
    size = WIDTH // HEADS
    q, k, v = (t.detach() for t in made.project(x))
    rows = made.random.projection * made.scale
    y = torch.zeros(batch, length, HEADS, size, dtype=x.dtype)
    for b in range(batch):
        for h in range(HEADS):
            top = torch.zeros(2 * rows.shape[1], size, dtype=x.dtype)
            below = torch.zeros(2 * rows.shape[1], dtype=x.dtype)
            for t in range(length):
                gate = 1 / (1 + math.exp(-float(x[b, t] @ made.gate.weight[h] + made.gate.bias[h])))
                phis = []
                for one in (k[b, h, t], q[b, h, t]):
                    angles = rows[h] @ (one / one.norm())
                    phis.append(torch.cat((angles.sin(), angles.cos())) / math.sqrt(len(angles)))
                written = (1 - gate) * phis[0]
                top = gate * top + torch.outer(written, v[b, h, t])
                below = gate * below + written
                y[b, t, h] = phis[1] @ top / (phis[1] @ below)
    return made.out(y.flatten(2))


def test_rfa_with_a_gate_is_its_recurrence():
    made = mixer("rfa", True, gate=True, features=64).eval()
    with torch.no_grad():
        made.gate.weight.normal_(std=0.5)
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected = rfa_loop(x, made)
        for got in (made(x).y, made.reference(x)):
            torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("over", "share"), [("all", 0.1 / 5), ("others", 0.1 / 4)])
def test_label_smoothing_spreads_over_all_or_over_the_others(over, share):
    config = ModelConfig(label_smoothing=0.1, smoothing_over=over)
    logits = torch.randn(7, 5, dtype=torch.float64)
    goals = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    logs = logits - logits.exp().sum(-1, keepdim=True).log()
    expected = 0.0
    for row, goal in enumerate(goals.tolist()):
        weights = [share] * 5
        weights[goal] = 0.9 + (share if over == "all" else 0.0)
        assert sum(weights) == pytest.approx(1)
        expected -= sum(w * float(logs[row, c]) for c, w in enumerate(weights)) / 7
    assert total_loss(logits[None], goals[None], {}, config)[0].item() == pytest.approx(expected)


def test_of_the_hidden_tokens_80_in_100_are_masked_10_random_and_10_kept():
    text = type("Text", (), {"packed": False})()
    data = MaskedTextDataset(
        name="", task="mlm", kind="text", vocabulary=1001, length=500, split="", fingerprint="",
        tokenizer=None, text=text, rate=0.15, seed=0,
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 1000, (400, 500))
    batch = data.hide(tokens, Draws((1,), 400))
    chosen = batch.targets != -100
    assert float(chosen.double().mean()) == pytest.approx(0.15, abs=0.005)
    made, real = batch.inputs[chosen], batch.targets[chosen]
    assert float((made == 1000).double().mean()) == pytest.approx(0.80, abs=0.01)
    assert float(((made != 1000) & (made != real)).double().mean()) == pytest.approx(0.10, abs=0.01)
    assert float((made == real).double().mean()) == pytest.approx(0.10, abs=0.01)
    assert torch.equal(batch.inputs[~chosen], torch.from_numpy(tokens)[~chosen])


def test_most_used_rows_are_chosen_by_the_attention_of_a_token():
    """Each segment's attention counts by its mean over queries: long segments weigh no more."""
    memory = CompressiveMemory(
        width=2, options={"function": "most-used", "slots": 2, "rate": 2, "compressed": 4}
    )
    state = memory.init_state(1, 2)
    # what the rows of the past and the segment's own tokens get, summed over its queries
    received = [[[0.5, 0.3]], [[0.1, 0.4, 0.9, 0.6, 0.8, 0.7]]]
    for first, got in zip((0, 2), received, strict=True):
        new = len(got[0]) - first
        places = torch.arange(first, first + new)[None]
        x = places[..., None].expand(1, new, 2).float()
        segment = Segment(x, places, None, None, lambda *_: None, lambda got=got: torch.tensor(got))
        state, _ = memory.remember(state, segment)
    # rows 0 to 3 leave: row 0 has 0.5 / 2 + 0.1 / 4 = 0.275, row 1 0.3 / 2 + 0.4 / 4 = 0.25
    assert state.packed.x[0, :, 0].tolist() == [0.0, 1.0]
    torch.testing.assert_close(state.usage, torch.tensor([[0.2, 0.175]]))
