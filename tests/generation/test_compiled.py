"""A compiled step writes the tokens that an uncompiled one does, for any length and batch."""

import json
import os
import subprocess
import sys

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import UnsupportedError
from everyformer.generation import programs
from everyformer.generation.compiled import CompiledStep
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate, stream

SIZES = {"width": 16, "heads": 2, "layers": 2, "max_length": 48, "vocabulary": 30}
GREEDY = Sampling(temperature=0)
ATEN = torch.ops.aten

GROWING = {
    "position_options": {"scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}
}
"""angles that change with the length, so that there is no exact state"""


def model_of(name, **options):
    torch.manual_seed(0)
    return ef.create_model(name, **SIZES | options).eval()


def prompts(rows, length):
    return torch.randint(0, 30, (rows, length), generator=torch.Generator().manual_seed(1))


def both(model, prompt, **rules):
    """What is written without and with compiling."""
    return [generate(model, prompt, **rules, compile=way) for way in (False, True)]


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    "name", ["attention", "rope", "linear", "aft-simple", "aft-full", "transformer-xl", "gmlp"]
)
def test_a_compiled_step_writes_the_same_tokens(name):
    model = model_of(name)
    for rows, length in ((1, 5), (3, 7)):
        for rule in (GREEDY, Sampling(seed=3)):
            assert torch.equal(*both(model, prompts(rows, length), tokens=6, sampling=rule))


def test_padded_prompts_and_rows_that_end(graphs):
    model, ragged = model_of("attention"), [[1, 2, 3], [4, 5, 6, 7, 8]]
    plain = generate(model, ragged, tokens=9, sampling=GREEDY)
    end = Sampling(temperature=0, end_token=int(plain[0, 3]))
    for rule in (GREEDY, end):
        assert torch.equal(*both(model, ragged, tokens=9, sampling=rule))
    assert len(graphs) == 2  # of two rows and of one, with padding


def test_a_window_that_is_full_goes_on_without_room(graphs):
    """Up to its border it grows in its room; from then on it is of one size."""
    model = model_of("longformer", max_length=None, window=16)
    assert torch.equal(*both(model, prompts(1, 3), tokens=40, sampling=GREEDY))
    grows, fixed = ([s for _, s in graphs.values() if bool(s) == way] for way in (True, False))
    assert grows[0][0][1] < 16
    assert len(fixed) == 1


def test_one_graph_writes_on_beyond_every_room(graphs):
    """Rooms of 64 tokens are full twice; neither a second text nor one of a token needs another."""
    model = model_of("attention", max_length=200)
    for prompt, tokens in ((prompts(1, 5), 150), (prompts(1, 1), 9), (prompts(1, 7), 9)):
        assert torch.equal(*both(model, prompt, tokens=tokens, sampling=GREEDY))
    for rows in (3, 2):
        assert torch.equal(*both(model, prompts(rows, 7), tokens=9, sampling=GREEDY))
    assert len(graphs) == 2  # of one row, and of several


@pytest.mark.usefixtures("graphs")
def test_a_step_writes_into_its_room_and_copies_nothing():
    model = model_of("attention", layers=1)
    writing = stream(model, prompts(1, 5), tokens=20, sampling=GREEDY, compile=True)
    places = []
    for _ in writing:
        (layer,) = writing.state.layers
        places.append(layer.keys.data_ptr())
        assert layer.room.used == layer.keys.shape[2] == int(layer.num_tokens)
    assert len(set(places)) == 1


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
    assert len(graphs) == 1


@pytest.mark.usefixtures("graphs")
def test_a_state_that_another_text_went_on_from_is_copied():
    """Between two tokens of a stream somebody writes on from its state, into the same room."""
    model = model_of("attention")
    plain = generate(model, prompts(1, 5), tokens=8, sampling=GREEDY)
    writing = stream(model, prompts(1, 5), tokens=8, sampling=GREEDY, compile=True)
    drawn = [next(writing) for _ in range(4)]
    other = (drawn[-1][:, None] + 1) % 30
    list(stream(model, other, tokens=3, sampling=GREEDY, state=writing.state))
    assert torch.equal(torch.stack([*drawn, *writing], 1), plain)


def test_a_model_that_changes_is_another_or_read_as_it_is(graphs):
    model, rules = model_of("attention"), {"tokens": 6, "sampling": GREEDY}
    before = both(model, prompts(1, 5), **rules)[1]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    plain, made = both(model, prompts(1, 5), **rules)
    assert torch.equal(plain, made)
    assert not torch.equal(made, before)
    assert len(graphs) == 1
    # settings and dtypes are part of a graph
    next(part for part in model.modules() if hasattr(part, "eps")).eps = 0.5
    assert torch.equal(*both(model, prompts(1, 5), **rules))
    assert torch.equal(*both(model.double(), prompts(1, 5), **rules))
    assert len(graphs) == 3


def test_a_file_that_lacks_numbers_is_made_again(graphs, monkeypatch):
    """As one is whose making was ended between the two ways."""
    model, rules = model_of("attention"), {"tokens": 6, "sampling": GREEDY}
    both(model, prompts(1, 5), **rules)
    [file] = graphs
    whole, loaded, built = [], programs.loaded, programs.build

    def build(traced, about, file):
        whole.append(json.loads(about)["whole"])
        built(traced, about, file)

    monkeypatch.setattr(programs, "build", build)
    monkeypatch.setattr(
        programs, "loaded", lambda *of: loaded(*of) if whole and whole[-1] else None
    )
    assert torch.equal(*both(model, prompts(1, 5), **rules))
    assert whole == [False, True]
    assert [*graphs] == [file]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_products_with_one_token_are_sums_over_rows_of_the_weights(graphs, dtype):
    model = model_of("gpt").to(dtype)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    with torch.inference_mode():
        state = model(prompts(1, 5), state=model.init_state(1)).state
        plain = model(prompts(1, 1), state=state, last=1).logits
        made = CompiledStep(model, state)(prompts(1, 1))
    torch.testing.assert_close(made, plain, rtol=0, atol=1e-12 if dtype.itemsize > 4 else 0.1)
    [(traced, _)] = graphs.values()
    nodes = traced.graph_module.graph.nodes
    # four products in each of two layers, and the logits, each of a token that is written down
    written = torch.ops.prims.inductor_force_stride_order.default
    products = [
        n for n in nodes if n.target == ATEN.unsqueeze.default and n.args[0].target == written
    ]
    assert len(products) == 9
    assert not [n for n in nodes if n.target == ATEN.linear.default]


def test_products_with_two_tokens_are_torchs(graphs):
    generate(model_of("gpt"), prompts(2, 5), tokens=3, compile=True)
    [(traced, _)] = graphs.values()
    targets = [node.target for node in traced.graph_module.graph.nodes]
    assert targets.count(ATEN.linear.default) == 9


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    ("name", "options", "why"),
    [("compressive", {}, "compressive cannot be compiled.* changes in size"),
     ("linformer-chunked", {}, "linformer-chunked cannot be compiled.* changes in size"),
     ("rope", GROWING, "no step to compile")],
)  # fmt: skip
def test_what_has_no_step_of_one_program_is_refused_by_name(name, options, why):
    with pytest.raises(UnsupportedError, match=why):
        generate(model_of(name, **options), [[1, 2]], tokens=12, compile=True)


def test_without_a_compiler_one_sentence_says_so(monkeypatch, tmp_path):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(UnsupportedError, match=r"needs a C\+\+ compiler.*leave out `compile`"):
        generate(model_of("attention"), prompts(1, 4), tokens=2, compile=True)


def test_a_compiler_that_fails_is_told_of_and_leaves_nothing(monkeypatch, tmp_path):
    def fails(*_, **__):
        raise RuntimeError("cc1plus: out of memory")

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    with pytest.raises(UnsupportedError, match=r"the compiler fails \(cc1plus.*without compile"):
        generate(model_of("attention"), prompts(1, 4), tokens=2, compile=True)
    assert not [*programs.folder().rglob("*.pt2")]


@pytest.mark.full("the real compiler takes ten seconds")
def test_the_real_compiler_writes_the_same_tokens_and_keeps_its_work(tmp_path):
    program = """
import torch, everyformer as ef
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate
torch.manual_seed(0)
model = ef.create_model("attention", width=16, heads=2, layers=2, vocabulary=30).eval()
rule = {"tokens": 90, "sampling": Sampling(temperature=0)}
plain, made = (generate(model, [[1, 2, 3]], compile=way, **rule) for way in (False, True))
assert torch.equal(plain, made)
"""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = {"check": True, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-c", program], env=environment, **run)
    [file] = tmp_path.rglob("everyformer/*.pt2")
    made = file.stat().st_mtime_ns
    # what is kept needs no compiler
    subprocess.run([sys.executable, "-c", program], env=environment | {"CXX": "none"}, **run)
    assert [*tmp_path.rglob("everyformer/*.pt2")] == [file]
    assert file.stat().st_mtime_ns == made
