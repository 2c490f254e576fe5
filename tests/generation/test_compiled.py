"""A compiled step writes the tokens that an uncompiled one does, for any length and batch."""

import os
import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import everyformer as ef
from everyformer.core.errors import UnsupportedError
from everyformer.generation import compiled
from everyformer.generation.compiled import CompiledStep
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate, stream

SIZES = {"width": 16, "heads": 2, "layers": 2, "max_length": 48, "vocabulary": 30}
GREEDY = Sampling(temperature=0)


GROWING = {
    "position_options": {"scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}
}
"""angles that change with the length, so that there is no exact state"""


def model_of(name, **options):
    torch.manual_seed(0)
    return ef.create_model(name, **SIZES | options).eval()


def prompts(rows, length):
    return torch.randint(0, 30, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def eager(monkeypatch):
    """Graphs are caught as for the real compiler, and run as they are."""
    monkeypatch.setattr(CompiledStep, "backend", "eager")
    torch.compiler.reset()


@pytest.mark.full("10 s each", parts=3)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["attention", "rope", "linear", "aft-simple", "transformer-xl"])
def test_a_compiled_step_writes_the_same_tokens(name):
    model = model_of(name)
    for rows, length in ((1, 5), (3, 7)):
        prompt = prompts(rows, length)
        for rule in (GREEDY, Sampling(seed=3)):
            made = {"tokens": 6, "sampling": rule}
            assert torch.equal(*(generate(model, prompt, **made, compile=way) for way in (0, 1)))


@pytest.mark.usefixtures("eager")
@pytest.mark.full("a compiler works", parts=3)
def test_padded_prompts_and_rows_that_end():
    model, ragged = model_of("attention"), [[1, 2, 3], [4, 5, 6, 7, 8]]
    plain = generate(model, ragged, tokens=9, sampling=GREEDY)
    end = Sampling(temperature=0, end_token=int(plain[0, 3]))
    for rule in (GREEDY, end):
        made = {"tokens": 9, "sampling": rule}
        assert torch.equal(*(generate(model, ragged, **made, compile=way) for way in (0, 1)))


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are made, which run as they are."""
    made = []

    def keep(graph, inputs):
        # numbers, such as an epsilon, stand in the graph: torch would else begin again with them
        assert all(x.dim() for x in inputs if isinstance(x, torch.Tensor))
        made.append(compiled.read_by_rows(graph))
        return graph.forward

    monkeypatch.setattr(CompiledStep, "backend", staticmethod(keep))
    torch.compiler.reset()
    return made


@pytest.mark.full("the compiler works for seconds")
def test_one_graph_writes_on_beyond_every_room(graphs):
    """Rooms of 64 tokens are full twice; neither a second text nor one of a token needs another."""
    model = model_of("attention", max_length=200)
    for prompt, tokens in ((prompts(1, 5), 150), (prompts(1, 1), 9), (prompts(1, 7), 9)):
        made = {"tokens": tokens, "sampling": GREEDY}
        assert torch.equal(*(generate(model, prompt, **made, compile=way) for way in (0, 1)))
    assert len(graphs) == 1


def test_a_step_writes_into_its_room_and_copies_nothing(graphs):
    model = model_of("attention", layers=1)
    writing = stream(model, prompts(1, 5), tokens=20, sampling=GREEDY, compile=True)
    places = []
    for _ in writing:
        (layer,) = writing.state.layers
        places.append(layer.keys.data_ptr())
        assert layer.room.used == layer.keys.shape[2]
    assert len(set(places)) == 1
    assert len(graphs) == 1


@pytest.mark.full("the compiler works for seconds")
def test_two_texts_go_on_from_one_state(graphs):
    model = model_of("attention")
    first = stream(model, prompts(1, 5), tokens=3, sampling=GREEDY, compile=True)
    last = list(first)[-1][:, None]
    state = first.state
    rest = [
        torch.stack(list(stream(model, start, tokens=6, sampling=GREEDY, state=state, compile=way)))
        for way in (True, False)
        for start in (last, (last + 1) % 30, last)
    ]
    assert torch.equal(torch.stack(rest[:3]), torch.stack(rest[3:]))
    assert torch.equal(rest[0], rest[2])


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_products_with_one_token_are_sums_over_rows_of_the_weights(graphs, dtype):
    model = model_of("gpt").to(dtype)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.inference_mode():
        state = model(prompts(1, 5), state=model.init_state(1)).state
        plain = model(prompts(1, 1), state=state, last=1).logits
        made = CompiledStep(model)(prompts(1, 1), state).logits
    torch.testing.assert_close(made, plain, rtol=0, atol=1e-12 if dtype.itemsize > 4 else 0.1)
    targets = [node.target for node in graphs[0].graph.nodes]
    # four products in each of two layers, and the logits
    assert targets.count(compiled._of_one_token) == 9
    assert torch.nn.functional.linear not in targets


def test_a_token_is_written_down_before_it_is_read_for_every_row_of_the_weights():
    sizes = (1, 1, 6), (4, 6), (4,)
    nodes = make_fx(compiled._of_one_token)(*map(torch.randn, sizes)).graph.nodes
    (product,) = (node for node in nodes if node.target == torch.ops.aten.mul.Tensor)
    (unsqueezed, _) = product.args
    written = torch.ops.prims.inductor_force_stride_order.default
    assert unsqueezed.args[0].target == written


@pytest.mark.full("the compiler works for seconds")
def test_products_with_two_tokens_are_torchs(graphs):
    model = model_of("gpt")
    generate(model, prompts(2, 5), tokens=3, compile=True)
    targets = [node.target for node in graphs[0].graph.nodes]
    assert targets.count(torch.nn.functional.linear) == 9


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("name", "options", "why"),
    [("depth-adaptive", {}, "depth-adaptive cannot be compiled"),
     ("rope", GROWING, "no step to compile")],
)  # fmt: skip
def test_what_has_no_step_of_one_graph_is_refused_by_name(name, options, why):
    with pytest.raises(UnsupportedError, match=why):
        generate(model_of(name, **options), [[1, 2]], tokens=4, compile=True)


def test_without_a_compiler_one_sentence_says_so(monkeypatch):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(UnsupportedError, match=r"needs a C\+\+ compiler.*without compile"):
        generate(model_of("attention"), prompts(1, 4), tokens=2, compile=True)


@pytest.mark.full("the real compiler takes a minute")
def test_the_real_compiler_writes_the_same_tokens_and_keeps_its_work(tmp_path):
    program = """
import sys, torch, everyformer as ef
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate
torch.manual_seed(0)
model = ef.create_model("attention", width=16, heads=2, layers=2, vocabulary=30).eval()
rule = {"tokens": 5, "sampling": Sampling(temperature=0)}
plain, made = (generate(model, [[1, 2, 3]], compile=way, **rule) for way in (False, True))
assert torch.equal(plain, made)
print(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"])
"""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = {"env": os.environ | environment, "check": True, "capture_output": True, "text": True}
    hits = [subprocess.run([sys.executable, "-c", program], **run).stdout for _ in range(2)]
    assert int(hits[0]) == 0
    assert int(hits[1]) > 0
