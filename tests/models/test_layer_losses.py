"""Losses of inner layers and of the token after the next: when they count and what they are."""

import pytest
import torch
import torch.nn.functional as F

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train

TOKENS = torch.randint(0, 30, (2, 9), generator=torch.Generator().manual_seed(0))
TARGETS = TOKENS.roll(-1, 1)


def model(**more):
    torch.manual_seed(0)
    sizes = {"width": 8, "heads": 2, "layers": 4, "vocabulary": 30, "max_length": 16}
    return ef.create_model("gpt", **{**sizes, "dropout": 0.0, "embedding_dropout": 0.0, **more})


@pytest.mark.parametrize(
    ("done", "layers"),
    [(0.0, [1, 2, 3]), (0.124, [1, 2, 3]), (0.125, [2, 3]), (0.3, [3]), (0.375, []), (1.0, [])],
)
def test_layer_l_of_n_predicts_until_l_over_2n_of_the_training(done, layers):
    made = model(layer_losses=True).train()
    made.set_progress(done)
    losses = made(TOKENS, targets=TARGETS).losses
    taps = [f"block-output:{n}" for n in layers]
    out = made.stack(made.add_positions(made.embedding(TOKENS), None, None), taps=taps)
    expected = [
        F.cross_entropy(made.head(made.stack.norm(h)).flatten(0, 1), TARGETS.flatten())
        for h in out.taps.values()
    ]
    if layers:
        torch.testing.assert_close(losses["layers"], torch.stack(expected).sum())
    else:
        assert "layers" not in losses


@pytest.mark.parametrize("packed", [False, True])
def test_lookahead_predicts_the_token_after_the_next_of_the_same_document(packed):
    made = model(lookahead=0.5).train()
    documents = torch.tensor([[0] * 4 + [1] * 5]).expand(2, -1)
    mask = Mask(documents=documents) if packed else None
    out = made(TOKENS, targets=TARGETS, mask=mask)
    h = made.stack(made.add_positions(made.embedding(TOKENS), mask, None), mask=mask).y
    pairs = [(b, t) for b in range(2) for t in range(8) if not (packed and t == 3)]
    scores = torch.stack([made.ahead(h[b, t]) for b, t in pairs])
    goals = torch.tensor([int(TARGETS[b, t + 1]) for b, t in pairs])
    torch.testing.assert_close(out.losses["ahead"], 0.5 * F.cross_entropy(scores, goals))
    torch.testing.assert_close(out.loss, out.losses["task"] + out.losses["ahead"])


@pytest.mark.parametrize("real", ["000111111", "111110000", "110011011"])
@pytest.mark.parametrize("packed", [False, True])
def test_lookahead_steps_over_padding_whatever_stands_there(real, packed):
    made, real = model(lookahead=0.5).double().train(), [mark == "1" for mark in real]
    padding_mask = torch.tensor([real]).expand(2, -1)
    documents = torch.tensor([[0] * 5 + [1] * 4]).expand(2, -1)
    alone = Mask(documents=documents[:, real]) if packed else None
    expected = made(TOKENS[:, real], targets=TARGETS[:, real], mask=alone).losses["ahead"]
    # ids of padding are not read, nor its tokens
    other = torch.where(padding_mask, documents, 1 - documents)
    mask = Mask(padding_mask=padding_mask, documents=other if packed else None)
    tokens = torch.where(padding_mask, TOKENS, (TOKENS + 1) % 5)
    out = made(tokens, targets=TARGETS.masked_fill(~padding_mask, -100), mask=mask)
    torch.testing.assert_close(out.losses["ahead"], expected)


def test_both_together_look_ahead_from_every_layer_that_predicts():
    made = model(layer_losses=True, lookahead=0.5).train()
    early = made(TOKENS, targets=TARGETS).losses["ahead"]
    made.set_progress(0.5)
    late = made(TOKENS, targets=TARGETS).losses["ahead"]
    # four layers and one, all near the loss of knowing nothing
    assert 3.5 < early / late < 4.5


@pytest.mark.parametrize("mode", ["eval", "last", "plain"])
def test_they_are_of_the_training_alone_and_off_by_default(mode):
    made = model() if mode == "plain" else model(layer_losses=True, lookahead=0.5)
    made.train(mode != "eval")
    more = {"last": 3} if mode == "last" else {}
    out = made(TOKENS, targets=TARGETS, **more)
    assert set(out.losses) == {"task"}


def test_outputs_do_not_depend_on_them():
    made, plain = model(layer_losses=True, lookahead=0.5).eval(), model().eval()
    plain.load_state_dict(made.state_dict(), strict=False)
    torch.testing.assert_close(made(TOKENS).logits, plain(TOKENS).logits)


def test_the_loop_tells_the_progress(tmp_path):
    made = model(layer_losses=True, vocabulary=256)
    told = []
    before = made.set_progress
    made.set_progress = lambda done: (told.append(done), before(done))
    (tmp_path / "text.txt").write_text("a warm tree " * 50)
    data = load_dataset(DataConfig(str(tmp_path / "text.txt"), length=16), "lm")
    train(made, data, TrainingConfig(steps=4, batch=2), show=False)
    assert told == [0.0, 0.25, 0.5, 0.75]
    assert made.predicting == ()
