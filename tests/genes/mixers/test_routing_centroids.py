"""Routing Transformer's centroids: averages of what was routed, once a step."""

import pytest
import torch
import torch.nn.functional as F
from test_routing import build

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.engines.content.centroids import Centroids
from helpers import close, draw


def counted(centroids, x, labels, padding_mask=None):
    """One pass with a gradient."""
    y = x.clone().requires_grad_() * 2
    centroids.count(y, x, labels, padding_mask)
    y.sum().backward()


def test_averages_have_their_closed_form_after_equal_batches():
    centroids = Centroids(2, 3, 4, decay=0.9).double()
    start, eps = centroids.means.clone(), centroids.eps
    x, labels = draw(2, 2, 11, 4), torch.randint(0, 3, (2, 2, 11))
    padding_mask = torch.ones(2, 11, dtype=torch.bool)
    padding_mask[1, 6:] = False
    for _ in range(7):
        counted(centroids, x, labels, padding_mask)
        centroids.finalise()
    one = F.one_hot(labels, 3).double() * padding_mask[:, None, :, None]
    left = 0.9**7
    sums = left * start + (1 - left) * torch.einsum("bhlk,bhld->hkd", one, x)
    counts = left + (1 - left) * one.sum((0, 2))
    total = counts.sum(-1, keepdim=True)
    smoothed = (counts + eps) / (total + 3 * eps) * total
    close(centroids.means, sums / smoothed[..., None])
    close(centroids.counts, counts)


def stepped_by_hand(parameters):
    """A step that torch's own counts of changes do not see."""

    class Hand:
        def step(self):
            for p in parameters:
                p.data = p.data - 0.1 * p.grad

        def zero_grad(self):
            for p in parameters:
                p.grad = None

    return Hand()


OPTIMISERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "by hand": stepped_by_hand,
}


def trained(slices=1, checkpointing=False, steps=3, optimiser="sgd", told=False, **options):
    """The centroids after a few steps on rows that are worked through in slices."""
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 2, "heads": 2, "vocabulary": 11, "max_length": 24}
    model = ef.create_model("routing", dropout=0.0, clusters=3, window=8, **sizes, **options)
    model = model.double().train()
    model.enable_checkpointing(checkpointing)
    optimiser = OPTIMISERS[optimiser](list(model.parameters()))
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        tokens = torch.randint(0, 11, (4, 24), generator=generator)
        for rows in tokens.chunk(slices):
            (model(rows, targets=rows).losses["task"] / slices).backward()
        optimiser.step()
        optimiser.zero_grad()
        if told:
            model.end_step()
    return model


def centroids_of(model):
    return [b.mixer.centroids.means.clone() for b in model.eval().stack.blocks]


WORKED = [
    {"slices": 2}, {"slices": 4}, {"checkpointing": True}, {"told": True},
    {"slices": 2, "told": True}, {"residual": "reversible", "tie": False},
]  # fmt: skip


EACH = [(how, [*OPTIMISERS][n % 4]) for n, how in enumerate(WORKED)]


@pytest.mark.parametrize(("how", "optimiser"), EACH, ids=str)
def test_centroids_move_once_a_step_however_it_is_worked_through(how, optimiser):
    same = {name: value for name, value in how.items() if name in ("residual", "tie")}
    plain, model = trained(optimiser=optimiser, **same), trained(optimiser=optimiser, **how)
    close(centroids_of(plain), centroids_of(model))
    # three steps of 4 rows of 24 tokens, 0.001 of each taken into the averages, which begin at 1
    for block in model.stack.blocks:
        total = block.mixer.centroids.counts.sum(-1)
        expected = 3 * 0.999**3 + 96 * (1 - 0.999**3)
        close(total, torch.full_like(total, expected))


def test_a_loop_that_tells_moves_centroids_where_no_weight_does():
    """Frozen layers, or a learning rate of 0 at the start of a warm-up."""
    model = ef.create_model("routing", width=16, layers=1, heads=2, vocabulary=11, max_length=24)
    for told, moved in ((False, False), (True, True)):
        for weight in model.stack.parameters():
            weight.requires_grad_(False)
        mixer, tokens = model.train().stack.blocks[0].mixer, torch.randint(0, 11, (2, 24))
        model(tokens, targets=tokens).loss.backward()
        before = mixer.centroids.means.clone()
        if told:
            model.end_step()
        model(tokens)
        assert torch.equal(before, mixer.centroids.means) != moved


def test_centroids_stand_still_without_a_step():
    model = trained()
    before = centroids_of(model)
    tokens = torch.randint(0, 11, (4, 24))
    model.eval()(tokens, targets=tokens).loss.backward()
    with torch.no_grad():
        model.train()(tokens)
    close(centroids_of(model), before, 0)
    for a, b in zip(before, centroids_of(trained(steps=0)), strict=True):
        assert not torch.equal(a, b)


def test_a_step_that_was_counted_is_saved_with_the_weights():
    """Before the next pass moves them: a run that is resumed goes on as it would have."""
    model = trained()
    saved = {name: t.clone() for name, t in model.state_dict().items()}
    again = trained(steps=0)
    again.load_state_dict(saved)
    close(centroids_of(model), centroids_of(again), 0)


def test_padding_does_not_move_centroids():
    x, found = draw(2, 9, 16), []
    padding_mask = torch.ones(2, 9, dtype=torch.bool)
    padding_mask[:, 5:] = False
    for rows, mask in ((x, Mask(padding_mask=padding_mask)), (x[:, :5], None)):
        mixer = build().train()
        mixer(rows, mask=mask).y[:, :5].sum().backward()
        torch.optim.SGD(mixer.parameters(), lr=0.1).step()
        found.append(mixer.eval().centroids.means.clone())
    close(*found)


def test_averages_stay_in_full_precision():
    mixer = build().to(torch.bfloat16)
    assert mixer.out.weight.dtype == torch.bfloat16
    assert {b.dtype for b in mixer.buffers()} == {torch.float64}
    assert {b.dtype for b in build(dtype=torch.float16).buffers()} == {torch.float32}


def test_scores_follow_centroids_that_change_behind_autograd():
    centroids, x = Centroids(2, 3, 4, update="none").double(), draw(1, 2, 5, 4)
    for scale in (1.0, 3.0):
        centroids.means.data.mul_(-scale)
        found = centroids.scores(x)
        assert torch.equal(found.argmax(-1), (x @ centroids.means.mT).argmax(-1))
    centroids.float()
    assert centroids.scores(x.float()).dtype == torch.float32
