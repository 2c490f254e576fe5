"""A whole model of someone else is what it is, beside members: its outputs, its loss, its seeds."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import everyformer as ef
from everyformer.core.errors import ConfigError, EveryformerError, GeneError, UnsupportedError
from everyformer.core.leaks import leak_of
from everyformer.core.plugins import MODELS, allow_model, command
from everyformer.family import info, of_family, register_spec
from everyformer.lab.compare.plan import match_parameters
from everyformer.models.base import Model
from everyformer.models.build import build_model, configure

FILE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, vocab_size=7, d_model=8, ahead=0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.mix = nn.Linear(d_model, d_model)
        self.head = nn.Linear(d_model, vocab_size)
        self.ahead = ahead

    def forward(self, x):
        h = self.embed(x)
        seen = h.cumsum(1) + self.ahead * h.roll(-1, 1)
        return self.head(torch.tanh(self.mix(seen)))


def leaks(vocab_size, d_model):
    return Net(vocab_size, d_model, ahead=1)


class Later(Net):
    # shows what comes in later blocks of 48

    def forward(self, x):
        first, rest = self.embed(x).split([min(48, x.shape[1]), max(0, x.shape[1] - 48)], 1)
        blocks = [part.mean(1, keepdim=True).expand_as(part) for part in rest.split(48, 1)]
        return self.head(torch.cat([first.cumsum(1), *blocks], 1))


class Hidden(Net):
    def forward(self, x):
        return self.embed(x).cumsum(1)


class Masked(Net):
    def forward(self, x, mask=None):
        return super().forward(x if mask is None else x * mask)


def layers(width, num_layers):
    return nn.LSTM(width, width, num_layers, batch_first=True)


def both_ways(width):
    return nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)


def encoder(width, heads):
    layer = nn.TransformerEncoderLayer(width, heads, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def seven():
    return Net()


def fixed(vocab_size):
    return Net(vocab_size)


def narrow():
    return nn.LSTM(5, 5, batch_first=True)


finished = Net()
"""
SIZES = {"vocabulary": 11, "width": 8, "layers": 1, "heads": 2, "max_length": 20}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(MODELS, "")
    (tmp_path / "theirs.py").write_text(FILE)


def made(name: str, task: str = "lm", **options: object) -> Model:
    torch.manual_seed(0)
    return ef.create_model(f"theirs.py:{name}", task, **{**SIZES, **options}).double().eval()


def ids(rows: int = 3, length: int = 9) -> Tensor:
    return torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(1))


def test_logits_are_the_modules_and_the_loss_is_their_cross_entropy_with_gradients() -> None:
    model, x, goals = made("Net"), ids(), ids().flip(1)
    goals[0, :4] = -100
    out = model(x, targets=goals)
    module = model.outside.module
    scores = module(x)
    assert torch.equal(out.logits, scores)
    logs = scores - scores.exp().sum(-1, keepdim=True).log()
    scored = [logs[n, t, goals[n, t]] for n in range(3) for t in range(9) if goals[n, t] >= 0]
    expected = -sum(scored) / len(scored)
    assert math.isclose(out.loss.item(), expected.item(), rel_tol=1e-12)
    weights = [*module.parameters()]
    ours, theirs = (torch.autograd.grad(loss, weights) for loss in (out.loss, expected))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))
    # the last alone are those of all, and hidden states have an output layer here
    assert torch.equal(model(x, last=2).logits, scores[:, -2:])
    model = made("Hidden")
    hidden = model.outside.module.embed(x).cumsum(1)
    expected = hidden @ model.last.weight.T + model.last.bias
    assert torch.allclose(model(x).logits, expected, atol=1e-12)


def test_a_loss_in_pieces_is_the_loss() -> None:
    x = ids()
    whole, pieces = made("Net").train(), made("Net", loss_chunk=4).train()
    losses = [model(x, targets=x).loss for model in (whole, pieces)]
    assert math.isclose(losses[0].item(), losses[1].item(), rel_tol=1e-12)
    assert pieces(x, targets=x).logits.shape == (3, 0, 11)
    assert made("Net", label_smoothing=0.1)(x, targets=x).loss.item() != losses[0].item()


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("Net", {"dropout": 0.1}, "block"),
        ("Net", {"tie": False}, "tie"),
        ("Net", {"lookahead": 0.5}, "lookahead"),
        ("layers", {"dropout": 0.1}, "block"),
        ("layers", {"init": "gpt2"}, "init"),
        ("layers", {"layer_losses": True}, "layer_losses"),
    ],
)
def test_options_that_would_change_nothing_are_refused(name, options, word) -> None:
    with pytest.raises(GeneError, match=f"`{word}` would change nothing in it"):
        made(name, **options)


def test_a_seed_is_its_weights_and_leaves_the_random_numbers_where_they_belong() -> None:
    first, again = made("Net"), made("Net")
    torch.manual_seed(1)
    other = ef.create_model("theirs.py:Net", **SIZES).double().eval()
    x = ids()
    assert torch.equal(first(x).logits, again(x).logits)
    assert not torch.allclose(first(x).logits, other(x).logits)
    # the first numbers behind a seed are the module's, as where it is made by hand
    torch.manual_seed(0)
    alone = nn.Embedding(11, 8)
    assert torch.equal(first.outside.module.embed.weight.float(), alone.weight)


def test_features_stand_in_the_place_of_layers() -> None:
    model = made("layers", "classify-series", series=3, classes=4)
    x = torch.randn(2, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, _ = model.stack.outside.module(x)
    assert torch.equal(model.stack(x).y, expected)
    assert model(x[..., :3]).logits.shape == (2, 4)


def test_layers_of_torch_are_told_of_order_by_a_mask() -> None:
    model, x = made("encoder"), ids()
    later = x.clone()
    later[:, 5:] = (x[:, 5:] + 1) % 11
    y, moved = model(x).logits, model(later).logits
    assert torch.equal(y[:, :5], moved[:, :5])
    assert not torch.allclose(y[:, 5:], moved[:, 5:])


def test_a_mask_is_given_where_the_module_takes_one() -> None:
    x, padding_mask = ids(), torch.ones(3, 9, dtype=torch.bool)
    padding_mask[1, :4] = False
    y = made("Masked")(x, mask=ef.Mask(padding_mask=padding_mask)).logits
    other = x.clone()
    other[1, :4] = 10
    assert torch.equal(y, made("Masked")(other, mask=ef.Mask(padding_mask=padding_mask)).logits)
    assert not torch.allclose(y, made("Masked")(x).logits)


def test_padding_behind_a_causal_module_is_not_read_and_any_other_is_refused() -> None:
    x, right = ids(), torch.arange(9).expand(3, 9) < 6
    model = made("Net")
    assert torch.equal(model(x, mask=ef.Mask(padding_mask=right)).logits, model(x).logits)
    with pytest.raises(UnsupportedError, match=r"takes no mask.*give its forward a 'mask'"):
        model(x, mask=ef.Mask(padding_mask=right.flip(1)))
    with pytest.raises(UnsupportedError, match="documents"):
        model(x, mask=ef.Mask(documents=torch.zeros(3, 9, dtype=torch.long)))


@pytest.mark.parametrize(
    ("name", "task", "kind", "words"),
    [
        ("finished", "lm", ConfigError, "one finished module.*name a function or a class"),
        ("narrow", "lm", ConfigError, "reads 5 channels, but the width is 8.*take `width`"),
        ("seven", "lm", ConfigError, "reads 7 tokens, but the data have 11"),
        ("Nett", "lm", EveryformerError, r"theirs\.py:Nett.*Net"),
        ("Net", "classify-text", UnsupportedError, "reads token ids.*not classify"),
    ],
)
def test_what_cannot_stand_beside_members_is_refused_in_its_name(name, task, kind, words) -> None:
    with pytest.raises(kind, match=words):
        made(name, task)


def test_the_family_says_nothing_of_what_is_not_in_it() -> None:
    with pytest.raises(UnsupportedError, match="`verify` checks it"):
        of_family("theirs.py:Net")
    with pytest.raises(ConfigError, match="without weights that could be trained"):
        info("model.onnx")


def test_a_leak_is_found_in_texts_as_long_as_those_trained_on() -> None:
    model = made("Later", max_length=200)
    assert leak_of(model) is None
    assert leak_of(model, 40) is None
    said = str(leak_of(model, 200))
    assert said.startswith("output 48 moves by")
    assert "when all inputs from 58 on are others" in said


def test_a_leak_is_looked_for_in_the_weights_as_they_are_now() -> None:
    assert leak_of(made("Net")) is None
    assert "moves" in str(leak_of(made("both_ways")))
    model = made("leaks")
    assert "input 1 is another" in str(leak_of(model))
    with torch.no_grad():
        model.outside.module.mix.weight.zero_()
    assert leak_of(model) is None


def test_code_that_a_saved_model_names_is_run_where_it_is_named_too(tmp_path, monkeypatch) -> None:
    config = configure("theirs.py:Net", **SIZES)
    with pytest.raises(ConfigError, match=r"names the code.*--plugin .*theirs\.py:Net"):
        build_model(config)
    allow_model("theirs.py:Net")
    monkeypatch.chdir("/")  # wherever it was named
    assert build_model(config).outside.module.embed.num_embeddings == 11
    assert build_model(configure("hf:gpt2", **{**SIZES, "width": 16, "layers": 1})).outside
    # that of a plug-in is left to be run
    monkeypatch.chdir(tmp_path)
    config = configure("theirs.py:leaks", **SIZES)
    register_spec("theirs.py:leaks")
    assert build_model(config).outside.module.ahead == 1
    assert "--plugin" in command("generate run")
    # and a twin is the same model under another name
    one, two = (configure(f"theirs.py:Net{label}", **SIZES) for label in ("", "@again"))
    assert one.outside == two.outside == f"{tmp_path}/theirs.py:Net"


def test_it_has_no_state_and_no_inside() -> None:
    model = made("layers", layers=3)
    assert model.stack.outside.module.num_layers == 3
    with pytest.raises(ConfigError, match="checkpoint_activations"):
        model.enable_checkpointing()
    with pytest.raises(UnsupportedError, match="read whole"):
        model.init_state(1)
    with pytest.raises(UnsupportedError, match="taps"):
        made("Net")(ids(), taps=("block-output:1",))


def test_parameters_are_matched_where_the_width_is_taken_and_refused_where_it_is_not() -> None:
    allow_model("theirs.py:Net")
    allow_model("theirs.py:fixed")
    net = configure("theirs.py:Net", **{**SIZES, "heads": 1})
    wide, count = match_parameters(net, 1000)
    assert count == sum(
        p.numel()
        for p in ef.create_model("theirs.py:Net", **{**SIZES, "width": wide.width}).parameters()
    )
    assert abs(count / 1000 - 1) < 0.1
    with pytest.raises(GeneError, match="do not follow the width"):
        match_parameters(configure("theirs.py:fixed", **SIZES), 10**6)


@pytest.mark.parametrize("name", ["hf:gpt2", "hf:mamba"])
def test_models_of_transformers_are_made_of_these_sizes_and_learn(name) -> None:
    torch.manual_seed(0)
    model = ef.create_model(name, **{**SIZES, "width": 16, "layers": 2, "vocabulary": 300})
    config = model.outside.module.config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (300, 16, 2)
    x = torch.randint(0, 300, (2, 12))
    scores = model.eval().outside.module(input_ids=x, use_cache=False).logits
    loss = model(x, targets=x).loss
    assert torch.allclose(loss, F.cross_entropy(scores.flatten(0, 1), x.flatten()), atol=1e-6)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
