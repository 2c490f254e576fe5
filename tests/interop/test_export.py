"""Exported programs give the model's outputs at batches and lengths other than the traced ones."""

import importlib
import json
import sys

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, MissingExtraError, UnsupportedError
from everyformer.engines.averages.factors import band_product
from everyformer.genes.mixers import MIXERS
from everyformer.interop import export
from everyformer.interop.export import compare_program, export_onnx, export_program
from everyformer.laws import check
from everyformer.laws.targets import target
from helpers import graphs_take_all_pairs

AFTS = ("aft-full", "aft-local", "aft-simple", "aft-conv")
KERNELS = ("linear", "performer", "rfa")
SPARSE = ("longformer", "bigbird", "sparse-transformer", "image-transformer", "blockwise")
MODELS = {
    "attention": ("attention", "lm", {}),
    "causal AFTs": ("aft-simple", "lm", {"layers": 4, "mixer": ef.by_layer(*AFTS)}),
    "kernel attention": ("linear", "lm", {"layers": 3, "mixer": ef.by_layer(*KERNELS)}),
    "sparse patterns": ("blockwise", "lm", {"layers": 5, "mixer": ef.by_layer(*SPARSE)}),
    "aMLP": ("amlp", "classify-text", {}),
    "BERT": ("bert", "mlm", {}),
    "AFT of pictures": ("aft-conv", "classify-image", {"dims": 2, "kernel": 3}),
}
SIZES = [(1, 1), (1, 13), (4, 17), (2, 2)]


def model_of(member, task, **options):
    """One small layer, with outputs that depend on every input."""
    torch.manual_seed(0)
    size = {"vocabulary": 30, "max_length": 17, "image": None}
    if task == "classify-image":
        size = {"image": (3, 8, 12), "classes": 5}
    size |= {"width": 12, "layers": 1, "heads": 2}
    model = ef.create_model(member, task, **{**size, **options})
    for name, weight in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def inputs_of(model, batch, length):
    config = model.config
    if config.task == "classify-image":
        return {"pixels": torch.randn(batch, *config.image)}
    keep = torch.rand(batch, length) > 0.4
    keep[:, -1] = True
    inputs = {"tokens": torch.randint(0, 30, (batch, length)), "keep": keep}
    if config.token_types:
        inputs["types"] = torch.randint(0, config.token_types, (batch, length))
    return inputs


def logits_of(model, inputs):
    more = {"types": inputs["types"]} if "types" in inputs else {}
    mask = ef.Mask(keep=inputs["keep"]) if "keep" in inputs else None
    given = inputs.get("tokens", inputs.get("pixels"))
    with torch.no_grad():
        return model(given, mask=mask, **more).logits


def assert_same(run, model):
    for batch, length in SIZES:
        inputs = inputs_of(model, batch, length)
        got, expected = run(inputs), logits_of(model, inputs)
        assert got.shape == expected.shape
        if expected.dim() == 3:
            got, expected = got[inputs["keep"]], expected[inputs["keep"]]
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
        assert expected.std() > 0.1


@pytest.mark.parametrize("name", MODELS)
@graphs_take_all_pairs
def test_program_of_torch_equals_the_model(tmp_path, name):
    member, task, options = MODELS[name]
    model = model_of(member, task, **options).train()
    export_program(model, tmp_path / "model.pt2")
    assert model.training
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert_same(lambda inputs: loaded(**inputs), model.eval())
    if name == "aMLP":
        with pytest.raises(AssertionError, match="17"):
            loaded(**inputs_of(model, 1, 18))


@pytest.mark.full("3 to 24 s each, of programs whose torch form is tried each time", parts=3)
@pytest.mark.parametrize("name", MODELS)
@graphs_take_all_pairs
def test_onnxruntime_equals_the_model(tmp_path, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    member, task, options = MODELS[name]
    model = model_of(member, task, **options).eval()
    made = export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == list(made.inputs)
    assert [given.name for given in session.get_outputs()] == ["logits"]
    about = json.loads(session.get_modelmeta().custom_metadata_map["everyformer"])
    assert about["config"]["member"] == member
    assert about["longest"] == made.longest

    def run(inputs):
        fed = {name: value.numpy() for name, value in inputs.items()}
        return torch.from_numpy(session.run(None, fed)[0])

    assert_same(run, model)
    # the mixers compute by their fast forms again
    assert not any("forward" in vars(part) for part in model.modules())
    if name == "attention":
        torch.nn.init.normal_(model.embedding.weight)
        with pytest.raises(ef.EveryformerError, match="differs from the model's"):
            export._compare(model, made.path)


def test_an_operator_that_onnx_does_not_have_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(MIXERS.get("aft-simple"), "exports_literally", False)
    with pytest.raises(UnsupportedError, match=r"everyformer.running_average.*export_program"):
        export_onnx(model_of("aft-simple", "lm"), tmp_path / "model.onnx")


def test_a_dtype_that_onnxruntime_does_not_compute_in_is_an_error(tmp_path):
    pytest.importorskip("onnxruntime")
    model = model_of("attention", "classify-text").bfloat16()
    with pytest.raises(UnsupportedError, match=r"in bfloat16.*export model\.float"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_a_loaded_program_is_compared_with_the_model(tmp_path):
    path, model = tmp_path / "model.pt2", model_of("attention", "classify-text")
    export_program(model, path)
    assert compare_program(model, path) < 1e-5
    torch.nn.init.normal_(model.embedding.weight)
    with pytest.raises(ef.EveryformerError, match="of the exported program differs"):
        compare_program(model, path)


def test_tasks_and_endings_that_cannot_be_are_errors(tmp_path):
    pixels = ef.create_model("attention", "pixels", width=8, layers=1, heads=1, image=(1, 3, 3))
    with pytest.raises(UnsupportedError, match=r"'pixels'.*lm, mlm, classify-text"):
        export_program(pixels, tmp_path / "model.pt2")
    with pytest.raises(ConfigError, match=r"\.pt2"):
        export_program(model_of("attention", "lm"), tmp_path / "model.pt")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_a_package_the_extra_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*everyformer\[export\]"):
        export_onnx(model_of("attention", "lm"), tmp_path / "model.onnx")


def test_the_band_by_lookup_is_the_band():
    u, v = torch.randn(3, 41, 4).double(), torch.randn(3, 47, 4).double()
    expected = band_product(u, v, 7)
    torch.testing.assert_close(export._band_by_lookup(u, v, 7), expected, rtol=0, atol=1e-12)


def test_rows_put_in_order_by_counting_are_those_put_in_order_by_sorting(monkeypatch):
    rows = importlib.import_module("everyformer.engines.rows")
    keep = torch.rand(5, 13) > torch.rand(5, 1)
    sorted_order = rows.compact(torch.randn(5, 13, 2), keep).order
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert torch.equal(rows.compact(torch.randn(5, 13, 2), keep).order, sorted_order)


@pytest.mark.full("a quarter of a minute", parts=3)
def test_hashed_attention_is_a_program_of_torch_and_refused_by_name_for_onnx(tmp_path):
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "layers": 1, "max_length": 48}
    model = ef.create_model("reformer", "lm", **sizes, chunk=8, rounds=2).eval()
    export_program(model, tmp_path / "model.pt2")
    assert compare_program(model, tmp_path / "model.pt2") < 1e-5
    pytest.importorskip("onnxruntime")
    with pytest.raises(UnsupportedError, match=r"sorted_chunks.*export_program"):
        export_onnx(model, tmp_path / "model.onnx")


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
@pytest.mark.parametrize(
    ("member", "task", "causality"),
    [("attention", "lm", "held"), ("bert", "mlm", "exempt"), ("amlp", "classify-text", "exempt")],
)
def test_own_exports_are_read_by_own_laws(member, task, causality, ending, tmp_path, monkeypatch):
    """The file tells what it reads, that it may be given a mask, and whether it is causal."""
    monkeypatch.chdir(tmp_path)
    file = f"model.{ending}"
    {"onnx": export_onnx, "pt2": export_program}[ending](model_of(member, task), file)
    subject = target(file)
    longest = {"lm": None}.get(task, 17)
    assert (subject.inputs.vocabulary, subject.max_length()) == (30, longest)
    laws = ("causality", "padding", "batch", "determinism")
    found = {one.law: one.status for one in check(subject, laws=laws)}
    assert found == dict.fromkeys(laws, "held") | {"causality": causality}
    with pytest.raises(ConfigError, match="reads token ids below 30, not token ids below 64"):
        target(file, vocabulary=64)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_laws_refuse_an_export_of_pictures(ending, tmp_path):
    file = tmp_path / f"model.{ending}"
    model = model_of("vit", "classify-image")
    {"onnx": export_onnx, "pt2": export_program}[ending](model, file)
    with pytest.raises(ConfigError, match="reads pixels: expected one input, of token ids"):
        target(str(file))


class Plain(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_programs_of_others_are_read_by_place(tmp_path):
    free = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(Plain(), (torch.randn(2, 5, 3),), dynamic_shapes=(free,))
    torch.export.save(program, tmp_path / "plain.pt2")
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "plain.onnx")
    for file, known in (("plain.pt2", {"width": 3}), ("plain.onnx", {})):
        subject = target(str(tmp_path / file), **known)
        assert subject.masks == ()
        [one] = check(subject, laws=("causality",))
        assert one.status == "held", one.detail
        printed = []
        exec(subject.code(subject.inputs.code(1, 4), f"print({subject.call_code('x')})"),
             {"print": printed.append})  # fmt: skip
        assert printed[0].shape == (1, 4, 3)
