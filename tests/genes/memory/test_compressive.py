"""The Compressive Transformer's memory by its identities, with contents traced by their numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.mask import Mask
from everyformer.genes.memory.base import Segment
from everyformer.genes.memory.compressive import CompressiveMemory
from helpers import close, in_pieces

LENGTH = 29
IDS = torch.randint(0, 20, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def model(memory="compressive", position="t5-relative", **options):
    torch.manual_seed(0)
    sizes = {"width": 24, "heads": 3, "layers": 2, "vocabulary": 20, "residual": "post"}
    made = ef.create_model("attention", position=position, memory=memory, **sizes, **options)
    for name, parameter in made.named_parameters():
        if parameter.dim() >= 2 and "memory" not in name:
            torch.nn.init.normal_(parameter, std=0.25)
    return made.double()


def segment_of(x, places):
    """A segment whose attention falls on each of its tokens as its first channel says."""
    return Segment(x, places, None, None, lambda *_: x, lambda: x[:, :, 0])


def remembered(sizes, **options):
    """What a memory holds after segments of these sizes whose rows are their own positions."""
    memory = CompressiveMemory(width=2, options=options)
    state, seen = memory.init_state(1, 2), 0
    for size in sizes:
        places = torch.arange(seen, seen + size)[None]
        x = places[..., None].expand(1, size, 2).float()
        state, _ = memory.remember(state, segment_of(x, places))
        seen += size
    held = memory.recall(state, 1).rows.keys[0, 0, :, 0]
    return held[: state.packed.x.shape[1]].tolist(), state.rows.keys[0, 0, :, 0].tolist()


FUNCTIONS = [("mean", "t5-relative"), ("max", "rope"), ("most-used", "alibi"), ("mean", "rope")]


@pytest.mark.parametrize(("function", "position"), FUNCTIONS)
def test_at_rate_one_it_is_transformer_xl_with_both_memories(function, position):
    ours = model(position=position, slots=4, compressed=5, rate=1, function=function)
    xl = model("segment", position, slots=9, same_length="never")
    xl.load_state_dict(ours.state_dict(), strict=False)
    for size in (3, 4, 7):
        theirs = in_pieces(xl.train(), IDS, size)[0]
        torch.testing.assert_close(in_pieces(ours, IDS, size)[0], theirs)


def test_rows_move_through_the_two_queues_in_order():
    packed, rows = remembered([4] * 5, slots=4, compressed=6, rate=2, function="mean")
    assert rows == [16, 17, 18, 19]
    assert packed == [4.5, 6.5, 8.5, 10.5, 12.5, 14.5]


@pytest.mark.parametrize("sizes", [[3] * 7, [1] * 21, [5, 5, 5, 6], [21], [2, 19]])
def test_lengths_that_do_not_divide_lose_and_mix_nothing(sizes):
    packed, rows = remembered(sizes, slots=4, compressed=100, rate=3, function="mean")
    assert sum(sizes) == 21
    assert rows == list(range(3 * len(packed), 21))
    assert packed == [3 * n + 1 for n in range(len(packed))]
    assert 4 <= len(rows) < 4 + 3


def trained(**options):
    made = model(slots=4, compressed=6, rate=2, **options).train()
    state = made.init_state(2)
    for first in (0, 4, 8):
        part = IDS[:, first : first + 4]
        targets = IDS[:, first + 1 : first + 5]
        out = made(part, state=state, targets=targets)
        state = out.state.detach()
    return made, out


def gradients(made, loss):
    found = torch.autograd.grad(loss, list(made.parameters()), allow_unused=True)
    found = [0.0 if g is None else float(g.abs().max()) for g in found]
    return dict(zip(dict(made.named_parameters()), found, strict=True))


@pytest.mark.parametrize("loss", ["attention", "auto-encoding"])
@pytest.mark.parametrize("function", ["conv", "dilated"])
def test_each_loss_reaches_its_own_parameters_alone(function, loss):
    made, out = trained(function=function, reconstruction=loss)
    own = {n for n, _ in made.named_parameters() if ".memory." in n}
    assert own
    task = gradients(made, out.losses["task"])
    made, out = trained(function=function, reconstruction=loss)
    compression = gradients(made, out.losses["compression"])
    assert all(task[n] == 0 for n in own)
    assert all((compression[n] > 0) == (n in own) for n in compression)
    assert all(p.requires_grad for p in made.parameters())


def test_the_models_loss_reaches_the_function_one_segment_back_when_asked():
    made, out = trained(gradient="one-segment", reconstruction="none")
    task = gradients(made, out.losses["task"])
    assert all(value > 0 for name, value in task.items() if ".memory.compress.reduce" in name)
    plain, _ = trained(reconstruction="none")
    plain.load_state_dict(made.state_dict())
    asked = in_pieces(made, IDS, 4)[0]
    torch.testing.assert_close(asked, in_pieces(plain, IDS, 4)[0])


def test_attention_reconstruction_is_the_difference_of_contents():
    made = model(slots=0, compressed=4, rate=2).train()
    mixer = made.stack.blocks[0].mixer
    x = torch.randn(2, 4, 24).double()
    loss = mixer(x, state=mixer.init_state(2)).losses["compression"]
    packed = F.conv1d(x.mT, mixer.memory.compress.reduce.weight, stride=2)
    packed = (packed + mixer.memory.compress.reduce.bias[:, None]).mT
    q = mixer.project.one(x, "query")

    def heads(rows):
        k, v = mixer.project.one(rows, "key"), mixer.project.one(rows, "value")
        return (q @ k.mT / 8**0.5).softmax(-1) @ v

    torch.testing.assert_close(loss, (heads(x) - heads(packed)).square().mean())


def test_auto_encoding_at_rate_one_with_identities_loses_nothing():
    made = model(slots=0, compressed=4, rate=1, reconstruction="auto-encoding").train()
    mixer = made.stack.blocks[0].mixer
    with torch.no_grad():
        for convolution in (mixer.memory.compress.reduce, mixer.memory.compress.restore):
            convolution.weight.copy_(torch.eye(24)[..., None])
            convolution.bias.zero_()
    x = torch.randn(2, 4, 24).double()
    assert mixer(x, state=mixer.init_state(2)).losses["compression"] == 0


@pytest.mark.parametrize("position", ["t5-relative", "alibi", "rope"])
def test_time_puts_a_row_in_the_middle_of_what_it_stands_for(position):
    """With blocks of one constant row each, it is attention to every block once, at its middle."""
    made = model(position=position, slots=0, compressed=9, rate=3, function="mean", distance="time")
    mixer = made.stack.blocks[0].mixer
    blocks = torch.randn(1, 3, 24).double()
    state = mixer.init_state(1)
    state = mixer(blocks.repeat_interleave(3, 1), state=state).state
    x = torch.randn(1, 2, 24).double()
    got = mixer(x, state=state).y
    places = torch.tensor([[1, 4, 7, 9, 10]])
    rows = torch.cat((blocks, x), 1)
    q, k, v = mixer.project(rows)
    q, k = mixer.rotate(q, places), mixer.rotate(k, places)
    scores = q @ k.mT / 8**0.5
    if position != "rope":
        scores = scores + mixer.position.by_distance(places.mT - places, torch.float64)
    weights = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
    expected = mixer.out((weights @ v).transpose(1, 2).flatten(2))[:, 3:]
    torch.testing.assert_close(got, expected)


def test_the_state_stops_growing():
    made, sizes = model(slots=4, compressed=6, rate=2).eval(), []
    for tokens in (8, 16, 20, 28):
        sizes.append(in_pieces(made, IDS[:, :tokens], 4)[1].nbytes)
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]


def test_contradictions_are_refused():
    with pytest.raises(ConfigError, match="rate` must be at least 1"):
        model(rate=0)
    with pytest.raises(GeneError, match="nothing to learn"):
        model(function="mean", gradient="one-segment")


def mixer(**options):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "causal": True}
    own = {"slots": 3, "compressed": 4, "rate": 2} | options
    made = ef.create_mixer(
        "attention", memory="compressive", memory_options=own, position="t5-relative",
        position_options={"buckets": 32, "max_distance": 64}, **sizes,
    )  # fmt: skip
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return made.double()


@pytest.mark.parametrize("reconstruction", ["attention", "auto-encoding"])
@pytest.mark.parametrize("function", ["conv", "dilated"])
def test_losses_are_those_of_the_rows_that_compress(function, reconstruction):
    made = mixer(function=function, reconstruction=reconstruction).train()
    text = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(3)).double()
    alone = made(text, state=made.init_state(1)).losses["compression"]
    x, padding_mask = torch.full((2, 9, 12), 1e3).double(), torch.zeros(2, 9, dtype=torch.bool)
    x[0, 1:8], padding_mask[0, 1:8], padding_mask[1, 4:6] = text[0], True, True
    padded = made(x, mask=Mask(padding_mask=padding_mask), state=made.init_state(2)).losses[
        "compression"
    ]
    # a mean over rows counts the one that compresses nothing as 0
    close(2 * padded, alone)
    assert alone.item() > 1e-6


@pytest.mark.parametrize("sizes", [(12, 1, 1), (9, 4, 2), (20, 2, 6)])
def test_rows_that_were_used_most_are_as_far_as_they_are(sizes):
    """Against attention over the very rows that are held, each at its own position."""
    made = mixer(function="most-used", distance="time", slots=1, compressed=3)
    plain = ef.create_mixer(
        "attention", width=12, heads=3, causal=True, position="t5-relative",
        position_options={"buckets": 32, "max_distance": 64},
    ).double()  # fmt: skip
    plain.load_state_dict(made.state_dict(), strict=False)
    generator, state = torch.Generator().manual_seed(4), made.init_state(1)
    for size in sizes:
        x = torch.randn(1, size, 12, generator=generator).double()
        rows = torch.cat((state.packed.x, state.rows.keys[:, 0], x), 1)
        seen = int(state.num_tokens)
        held = state.rows.keys.shape[2]
        times = [*state.packed.times[0].tolist(), *range(seen - held, seen + size)]
        text = torch.zeros(1, times[-1] + 1, 12).double()
        padding_mask = torch.zeros(1, times[-1] + 1, dtype=torch.bool)
        text[0, times] = rows[0]
        padding_mask[0, times] = True
        out = made(x, state=state)
        shown = Mask(attention_mask=padding_mask[:, None, None])
        torch.testing.assert_close(
            out.y, plain.reference(text, mask=shown)[:, -size:], rtol=1e-9, atol=1e-10
        )
        state = out.state


def test_splitting_prompts_by_length_changes_no_token():
    torch.manual_seed(0)
    made = ef.create_model(
        "compressive", vocabulary=9, width=12, heads=3, layers=2, slots=2, compressed=2, rate=2,
    ).double().eval()  # fmt: skip
    for weight in made.parameters():
        weight.data.add_(torch.randn_like(weight) * 0.4)
    rows = [[1, 2, 3, 4, 5, 6, 7, 8, 1, 2], [3, 1, 4]]
    ids = torch.tensor([rows[0], [0] * 7 + rows[1]])
    padding_mask = torch.tensor([[True] * 10, [False] * 7 + [True] * 3])
    state = made.init_state(2)
    alone = [made.init_state(1), made.init_state(1)]
    together = made(ids, mask=Mask(padding_mask=padding_mask), state=state)
    own = [made(torch.tensor([row]), state=held) for row, held in zip(rows, alone, strict=True)]
    for token in itertools.chain([1, 5], range(6)):
        for row in (0, 1):
            torch.testing.assert_close(
                together.logits[row, -1], own[row].logits[0, -1], rtol=1e-9, atol=1e-10
            )
        new = torch.tensor([[token], [token]])
        together = made(new, state=together.state)
        own = [made(new[:1], state=part.state) for part in own]


def test_padding_uses_no_row():
    """The rows that stay are those that real queries read, whatever stands in padding."""
    made = mixer(function="most-used", slots=4, compressed=4)
    generator, states = torch.Generator().manual_seed(4), []
    text = torch.randn(1, 18, 12, generator=generator).double()
    for content in (0.0, 30.0):
        state = made.init_state(1)
        for segment in text.split(3, 1):
            x = torch.cat((segment, torch.randn(1, 3, 12, generator=generator) * content), 1)
            real = torch.tensor([[True] * 3 + [False] * 3])
            state = made(x.double(), mask=Mask(padding_mask=real), state=state).state
        states.append(state)
    close(states[0].usage, states[1].usage)
    close(states[0].packed.x, states[1].packed.x)
