"""Weights in 8 bits: what is rounded, how much, what a step reads, and what is refused."""

import os
import subprocess
import sys

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import UnsupportedError
from everyformer.core.state import named_tensors
from everyformer.generation import quantised as module
from everyformer.generation.compiled import CompiledStep
from everyformer.generation.config import Sampling
from everyformer.generation.quantised import Scaled, quantised
from everyformer.generation.sampling import generate, stream

SIZES = {"width": 16, "heads": 2, "layers": 2, "max_length": 48, "vocabulary": 30}
ATEN = torch.ops.aten
GROWING = {
    "position_options": {"scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}
}
PROMPT = torch.tensor([[3, 17, 5, 29, 11]])


@pytest.fixture
def any_size(monkeypatch):
    """Small models are taken too."""
    monkeypatch.setattr(module, "SMALL", 1)
    monkeypatch.setattr(module, "LEAST", 1)


def model_of(name="gpt", **options):
    """A model whose weights are so large that its outputs differ."""
    torch.manual_seed(0)
    model = ef.create_model(name, **SIZES | options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_each_row_has_a_scale_and_whole_numbers_up_to_127():
    torch.manual_seed(0)
    weight = torch.randn(4, 40) * torch.tensor([1e-3, 1.0, 50.0, 0.0])[:, None]
    scales, rows = Scaled().right_inverse(weight)
    assert (rows.dtype, rows.shape, scales.shape) == (torch.int8, (4, 40), (4, 1))
    for n in range(3):
        largest = max(abs(w) for w in weight[n].tolist())
        for w, whole in zip(weight[n].tolist(), rows[n].tolist(), strict=True):
            assert abs(whole - w * 127 / largest) <= 0.5001
        assert max(map(abs, rows[n].tolist())) == 127
    again = Scaled()(scales, rows)
    assert again.dtype == torch.float32
    assert ((again - weight).abs() <= 0.5001 * weight.abs().amax(1, keepdim=True) / 127).all()


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(("name", "matrices"), [("gpt", 9), ("attention", 9), ("aft-simple", 13)])
def test_products_are_rounded_and_nothing_else(name, matrices):
    model = model_of(name, tie=True)
    before = {key: t.clone() for key, t in model.state_dict().items()}
    rounded = quantised(model)
    kept = rounded.state_dict()
    assert sum(t.dtype == torch.int8 for t in kept.values()) == matrices
    assert {
        key for key, t in before.items() if key in kept and t.equal(kept[key])
    } == before.keys() - {
        key.replace("parametrizations.", "").removesuffix(".original1")
        for key, t in kept.items()
        if t.dtype == torch.int8
    }
    assert model.embedding.weight is model.head.weight
    assert torch.equal(rounded.embedding.weight, model.embedding.weight)
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())
    assert before.keys() == model.state_dict().keys()
    assert all(p.requires_grad for p in model.parameters())
    owned = {t.data_ptr() for t in model.state_dict().values()}
    assert owned.isdisjoint(t.data_ptr() for t in kept.values())
    # one number of each in a hundred or so
    error = (rounded(PROMPT).logits - model(PROMPT).logits).abs().max()
    assert 1e-4 < error < 0.1 * model(PROMPT).logits.std()


@pytest.mark.usefixtures("any_size", "graphs")
@pytest.mark.parametrize(
    "name", ["gpt", "rope", "linear", "aft-simple", "aft-conv", "xl-relative", "gmlp"]
)
def test_a_compiled_step_writes_what_the_rounded_model_does(name):
    model = model_of(name)
    for rule in (Sampling(temperature=0), Sampling(seed=3)):
        rules = {"tokens": 9, "sampling": rule}
        assert torch.equal(
            generate(quantised(model), PROMPT, **rules),
            generate(model, PROMPT, weights="int8", **rules),
        )


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("vocabulary", [30, 3])
def test_a_step_reads_rows_of_8_bits_four_at_a_time_and_scales_their_sums(graphs, vocabulary):
    model = quantised(model_of(vocabulary=vocabulary))
    tokens = PROMPT % vocabulary
    with torch.inference_mode():
        state = model(tokens, state=model.init_state(1)).state
        plain = model(tokens[:, :1], state=state, last=1).logits
        made = CompiledStep(model, state)(tokens[:, :1])
    torch.testing.assert_close(made, plain, rtol=1e-5, atol=1e-5)
    [(traced, _)] = graphs.values()
    nodes = traced.graph_module.graph.nodes
    read = [n for n in nodes if n.op == "placeholder" and n.meta["val"].dtype == torch.int8]
    assert len(read) == 9
    for node in read:
        # what multiplies a whole matrix is read by nobody
        parts = [n for n in node.users if n.users]
        assert [n.target for n in parts] == [ATEN.slice.Tensor] * min(4, len(node.meta["val"]))
        for part in parts:
            [product] = part.users
            assert product.target is ATEN.mul.Tensor
            assert [n.target for n in product.users] == [ATEN.sum.dim_IntList]
    assert not [n for n in nodes if n.target == ATEN.linear.default]


def tensors(state):
    return torch.cat([t.flatten().double() for t in named_tensors(state).values()])


@pytest.mark.usefixtures("any_size", "graphs")
def test_a_text_that_is_gone_on_from_a_state_is_one_that_never_stopped():
    """Up to rounding; what the float model had read would differ by a hundredth."""
    model, rules = model_of(), {"sampling": Sampling(seed=5), "weights": "int8"}
    whole = stream(model, PROMPT, tokens=14, **rules)
    text = torch.cat([*whole])
    first = stream(model, PROMPT, tokens=6, **rules)
    begun = torch.cat([*first])
    rest = stream(model, begun[-1:, None], tokens=8, state=first.state, **rules)
    assert torch.equal(torch.cat([begun, *rest]), text)
    torch.testing.assert_close(tensors(rest.state), tensors(whole.state), rtol=0, atol=1e-5)
    with torch.inference_mode():
        read = torch.cat([PROMPT, text[None, :-1]], 1)
        by_floats = model(read, state=model.init_state(1)).state
    assert (tensors(by_floats) - tensors(whole.state)).abs().max() > 1e-3


@pytest.mark.usefixtures("any_size", "graphs")
def test_a_stream_goes_on_with_the_weights_of_its_start_and_the_next_takes_the_new():
    model, other = model_of(), model_of()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    rules = {"tokens": 10, "sampling": Sampling(seed=1), "weights": "int8"}
    old, new = (generate(each, PROMPT, **rules) for each in (model, other))
    assert not torch.equal(old, new)
    writing = stream(model, PROMPT, **rules)
    begun = [next(writing) for _ in range(4)]
    model.load_state_dict(other.state_dict())
    assert torch.equal(torch.stack([*begun, *writing], 1), old)
    assert torch.equal(generate(model, PROMPT, **rules), new)


@pytest.mark.usefixtures("any_size", "graphs")
def test_a_model_in_training_stays_so_and_is_written_with_in_evaluation():
    model = model_of(dropout=0.5).train()
    rules = {"tokens": 8, "weights": "int8"}
    first, second = (generate(model, PROMPT, **rules) for _ in range(2))
    assert torch.equal(first, second)
    assert all(part.training for part in model.modules())


@pytest.mark.usefixtures("any_size", "graphs")
@pytest.mark.parametrize(
    ("name", "options", "why"),
    [("compressive", {}, "compressive cannot be compiled.* changes in size"),
     ("rope", GROWING, "no step to compile")],
)  # fmt: skip
def test_members_without_a_compiled_step_are_refused(name, options, why):
    with pytest.raises(UnsupportedError, match=why):
        generate(model_of(name, **options), [[1, 2]], tokens=12, weights="int8")


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("kind", ["float64", "bfloat16", "float16"])
def test_other_dtypes_are_refused_by_name(kind):
    with pytest.raises(
        UnsupportedError, match=f"in float32 on a CPU, not for one in {kind} on cpu"
    ):
        generate(model_of().to(getattr(torch, kind)), PROMPT, tokens=2, weights="int8")


@pytest.mark.usefixtures("any_size")
def test_other_devices_and_several_rows_are_refused():
    with pytest.raises(UnsupportedError, match="not for one in float32 on meta"):
        quantised(model_of().to("meta"))
    with pytest.raises(UnsupportedError, match="one text at a time, and would be slower for 2"):
        generate(model_of(), [[1, 2], [3, 4]], tokens=2, weights="int8")


def test_models_that_would_be_no_faster_are_refused():
    def of(width, layers):
        return ef.create_model("gpt", width=width, heads=4, layers=layers, vocabulary=256)

    with pytest.raises(
        UnsupportedError, match=r"819,200 numbers in large.*and 1,048,576 are needed"
    ):
        generate(of(128, 4), PROMPT, tokens=2, weights="int8")
    kinds = [t.dtype for t in quantised(of(192, 4)).state_dict().values()]
    assert kinds.count(torch.int8) == 17
    # what is small stays as it is
    with pytest.raises(UnsupportedError, match="has 0 numbers"):
        quantised(of(32, 9))


@pytest.mark.usefixtures("any_size")
def test_a_model_that_reads_a_datastore_is_refused():
    from everyformer.models.knn_lm import KnnLanguageModel
    from everyformer.stores.reader import KnnOptions

    reading = KnnLanguageModel(model_of(), lambda *_: None, KnnOptions())
    with pytest.raises(UnsupportedError, match="not for one that reads a datastore"):
        generate(reading, PROMPT, tokens=2, weights="int8")


@pytest.mark.usefixtures("any_size")
def test_without_a_compiler_one_sentence_says_so(monkeypatch, tmp_path):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(UnsupportedError, match=r"needs a C\+\+ compiler"):
        generate(model_of(), PROMPT, tokens=2, weights="int8")


@pytest.mark.full("the real compiler takes ten seconds")
def test_the_real_compiler_reads_8_bits_by_vectors(tmp_path):
    program = """
import torch, everyformer as ef
from everyformer.generation import quantised
from everyformer.generation.config import Sampling
quantised.LEAST = 1
torch.manual_seed(0)
model = ef.create_model("gpt", width=128, heads=2, layers=1, vocabulary=256).eval()
rule = {"tokens": 40, "sampling": Sampling(temperature=0)}
plain = ef.generate(quantised.quantised(model), [[1, 2, 3]], **rule)
assert torch.equal(plain, ef.generate(model, [[1, 2, 3]], weights="int8", **rule))
"""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = {"check": True, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-c", program], env=environment, **run)
    [code] = [file.read_text() for file in tmp_path.rglob("*.kernel.cpp")]
    # four rows of each of five matrices, none of which is written down in floats
    assert code.count("Vectorized<int8_t>::loadu") == 4 * 5
    assert code.count("at::vec::convert<float>") == 4 * 5
