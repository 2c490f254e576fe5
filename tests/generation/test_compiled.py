"""A compiled step writes the tokens that an uncompiled one does, for any length and batch."""

import os
import subprocess
import sys

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import UnsupportedError
from everyformer.generation import compiled
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate

SIZES = {"width": 16, "heads": 2, "layers": 2, "max_length": 48, "vocabulary": 30}
GREEDY = Sampling(temperature=0)


GROWING = {
    "position_options": {"scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}
}
"""angles that change with the length, so that there is no exact state"""


def model_of(name, **options):
    torch.manual_seed(0)
    return ef.create_model(name, **SIZES, **options).eval()


def prompts(rows, length):
    return torch.randint(0, 30, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def eager(monkeypatch):
    """Graphs are caught as for the real compiler, and run as they are."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    torch.compiler.reset()


@pytest.mark.full("10 s each", parts=3)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["attention", "rope", "linear", "aft-simple", "transformer-xl"])
def test_a_compiled_step_writes_the_same_tokens(name):
    model = model_of(name)
    for rows, length in ((1, 5), (3, 7)):
        prompt = prompts(rows, length)
        for sampling in (GREEDY, Sampling(seed=3)):
            both = [
                generate(model, prompt, tokens=6, sampling=sampling, compile=way)
                for way in (False, True)
            ]
            assert torch.equal(*both)


@pytest.mark.usefixtures("eager")
@pytest.mark.full("a compiler works", parts=3)
def test_padded_prompts_and_rows_that_end():
    model, ragged = model_of("attention"), [[1, 2, 3], [4, 5, 6, 7, 8]]
    plain = generate(model, ragged, tokens=9, sampling=GREEDY)
    end = Sampling(temperature=0, end_token=int(plain[0, 3]))
    for sampling in (GREEDY, end):
        both = [
            generate(model, ragged, tokens=9, sampling=sampling, compile=way)
            for way in (False, True)
        ]
        assert torch.equal(*both)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("name", "why"),
    [("depth-adaptive", "depth-adaptive cannot be compiled"), ("rope", "no step to compile")],
)
def test_what_has_no_step_of_one_graph_is_refused_by_name(name, why):
    with pytest.raises(UnsupportedError, match=why):
        generate(
            model_of(name, **GROWING if name == "rope" else {}), [[1, 2]], tokens=4, compile=True
        )


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
    hits = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    assert int(hits[0]) == 0
    assert int(hits[1]) > 0
