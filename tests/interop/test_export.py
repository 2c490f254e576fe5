"""Exported programs give the model's outputs at batches and lengths other than the traced ones."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, MissingExtraError, UnsupportedError
from everyformer.core.state import named_tensors
from everyformer.engines.averages.running import _running_average
from everyformer.engines.operators import FORMS
from everyformer.interop import export
from everyformer.interop.export import compare_program, export_onnx, export_program
from everyformer.interop.stateful import start_tensors
from helpers import graphs_take_all_pairs
from sequence_laws import check
from sequence_laws.targets import target

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
SIZES = [(1, 1), (1, 13), (4, 17), (2, 2), (2, 150)]


def model_of(member, task, **options):
    """One small layer, with outputs that depend on every input."""
    torch.manual_seed(0)
    size = {"vocabulary": 30, "max_length": 150, "image": None}
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
    padding_mask = torch.rand(batch, length) > 0.4
    padding_mask[:, -1] = True
    inputs = {"tokens": torch.randint(0, 30, (batch, length)), "padding_mask": padding_mask}
    if config.token_types:
        inputs["types"] = torch.randint(0, config.token_types, (batch, length))
    return inputs


def logits_of(model, inputs):
    more = {"types": inputs["types"]} if "types" in inputs else {}
    mask = ef.Mask(padding_mask=inputs["padding_mask"]) if "padding_mask" in inputs else None
    given = inputs.get("tokens", inputs.get("pixels"))
    with torch.no_grad():
        return model(given, mask=mask, **more).logits


def assert_same(run, model):
    for batch, length in SIZES:
        inputs = inputs_of(model, batch, length)
        got, expected = run(inputs), logits_of(model, inputs)
        assert got.shape == expected.shape
        if expected.dim() == 3:
            got, expected = got[inputs["padding_mask"]], expected[inputs["padding_mask"]]
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
        assert expected.std() > 0.1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "BERT" else pytest.mark.full("3 to 6 s each"))
        for name in MODELS
    ],
)
@graphs_take_all_pairs
def test_program_of_torch_equals_the_model(tmp_path, name):
    member, task, options = MODELS[name]
    model = model_of(member, task, **options).train()
    export_program(model, tmp_path / "model.pt2")
    assert model.training
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert_same(lambda inputs: loaded(**inputs), model.eval())
    if name == "BERT":
        assert compare_program(model, tmp_path / "model.pt2") < 1e-5
        torch.nn.init.normal_(model.embedding.weight)
        with pytest.raises(ef.EveryformerError, match="of the exported program differs"):
            compare_program(model, tmp_path / "model.pt2")
    if name == "aMLP":
        with pytest.raises(AssertionError, match="150"):
            loaded(**inputs_of(model, 1, 151))


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


class Attends(torch.nn.Module):
    """A user's module around ours."""

    def __init__(self, member, causal, **more):
        super().__init__()
        options = {"aft-full": {"max_length": 150}, "aft-local": {"max_length": 150, "window": 7}}
        sizes = {"batch_first": True, "causal": causal, **options.get(member, {}), **more}
        self.attention = ef.MultiheadAttention(16, 2, member=member, **sizes)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def session_of(module, tmp_path, profile=False):
    """onnxruntime's session of a module that torch itself exports, length left open."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    free = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=150)},)
    x = torch.randn(3, 6, 16)
    made = torch.onnx.export(module, (x,), dynamo=True, dynamic_shapes=free, verbose=False)
    made.save(tmp_path / "module.onnx")
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = profile, str(tmp_path / "profile")
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(tmp_path / "module.onnx", options, providers=providers)


SLOW = pytest.mark.full("3 to 9 s each", parts=5)
WRITTEN = [
    pytest.param(member, causal, marks=() if (member, causal) == ("aft-simple", True) else SLOW)
    for member in (*AFTS, *KERNELS)
    for causal in (True, False)
]


@pytest.mark.parametrize(("member", "causal"), WRITTEN)
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_torch_writes_a_module_with_a_mixer_of_ours(tmp_path, member, causal):
    torch.manual_seed(0)
    module = Attends(member, causal).eval()
    session = session_of(module, tmp_path)
    for size in ((1, 1), (2, 64), (3, 65), (1, 150)):
        x = torch.randn(*size, 16)
        with torch.no_grad():
            expected = module(x)
        [got] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=0, atol=2e-5)
        assert expected.std() > 0.01


@pytest.mark.full("seconds of exporting")
@pytest.mark.parametrize(
    ("member", "causal", "more", "scale"),
    [
        # heads whose blocks are behind the end of a short text see nothing: torch's operator in
        # ONNX gives a mean there
        ("blockwise", False, {"max_length": 150, "block_size": 75}, 1),
        # log of a sigmoid is -inf in ONNX where a gate is shut
        ("rfa", True, {"gate": True}, 1e3),
    ],
)
@graphs_take_all_pairs
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_what_onnx_writes_otherwise_than_torch(tmp_path, member, causal, more, scale):
    torch.manual_seed(0)
    module = Attends(member, causal, **more).eval()
    session = session_of(module, tmp_path)
    x = scale * torch.randn(2, 65, 16)
    with torch.no_grad():
        expected = module(x)
    [got] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-5, atol=2e-5 * scale)
    assert expected.std() > 0.01


@pytest.mark.full("seconds of exporting")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_what_a_file_of_linear_attention_writes_grows_with_the_length(tmp_path):
    torch.manual_seed(0)
    module = Attends("linear", True).eval()
    written = []
    for length in (64, 128):
        session = session_of(module, tmp_path, profile=True)
        x = torch.randn(1, length, 16)
        [got] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        events = json.loads(Path(session.end_profiling()).read_text())
        sizes = (int(e.get("args", {}).get("output_size", 0)) for e in events)
        written.append(sum(sizes))
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), module(x), rtol=0, atol=2e-5)
    assert written[0] > 64 * 16 * 4
    # a chunk of nothing is read besides, so that 3 chunks follow 2
    assert written[1] < 1.75 * written[0]


@pytest.mark.full("seconds of exporting")
@pytest.mark.parametrize("member", ["linear", "rope"])
def test_half_precision_is_held_to_its_own_rounding(tmp_path, member):
    pytest.importorskip("onnxruntime")
    model = model_of(member, "lm").half()
    assert 1e-4 < export_onnx(model, tmp_path / "model.onnx").difference < 0.05
    other = model_of(member, "lm").half()
    other.head.weight.data[0] *= 1.05
    with pytest.raises(ef.EveryformerError, match="differs from the model's"):
        export._compare(other, tmp_path / "model.onnx")


STREAMS = {
    "linear": {}, "linear with eps": {"eps": 0.5}, "performer": {}, "rfa": {},
    "rfa with gates": {"gate": True}, "aft-simple": {}, "aft-conv": {"kernel": 5},
    "aft-local": {"window": 4}, "aft-full": {}, "gmlp": {}, "amlp": {}, "attention": {},
    "learned": {}, "rope": {}, "alibi": {}, "t5-relative": {}, "shaw": {}, "da-transformer": {},
    "transformer-xl": {"slots": 20}, "compressive": {}, "gtrxl": {}, "spalm": {},
    "adaptive-span": {}, "longformer": {"window": 8}, "bigbird": {}, "sparse-transformer": {},
    "image-transformer": {}, "blockwise": {},
}  # fmt: skip
NODES = {
    "Attention": ("attention", "learned", "rope", "amlp", *SPARSE),
    "LinearAttention": ("linear", "performer", "rfa", "aft-simple"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "linear" else pytest.mark.full("4 to 30 s each"))
        for name in STREAMS
    ],
)
def test_a_file_with_a_state_reads_texts_in_pieces(tmp_path, name):
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    member = name.split()[0]
    model = model_of(member, "lm", layers=2, **STREAMS[name]).eval()
    made = export_onnx(model, tmp_path / "model.onnx", state=True, operators="onnxruntime")
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    state = start_tensors(model, made.inputs, 2)
    assert made.inputs == ("tokens", "padding_mask", *state)
    outputs = [given.name for given in session.get_outputs()]
    assert outputs == ["logits", *(f"next.{name.removeprefix('state.')}" for name in state)]
    kinds = [node.op_type for node in onnx.load(made.path).graph.node]
    for kind, members in NODES.items():
        assert kinds.count(kind) == (2 if member in members else 0)
    # real tokens are 10 and 7 of the first 12, and all from then on
    text, real = torch.randint(30, (2, 140)), torch.ones(2, 140, dtype=torch.bool)
    real[0, [0, 5]] = real[1, :5] = False
    fed = {name: t.numpy() for name, t in state.items()}
    logits = []
    for piece in torch.arange(140).split([12, 1, 88, 1, 38]):
        given = {"tokens": text[:, piece].numpy(), "padding_mask": real[:, piece].numpy()}
        new, *after = session.run(None, given | fed)
        fed = dict(zip(fed, after, strict=True))
        logits.append(torch.from_numpy(new))
    with torch.no_grad():
        out = model(text, mask=ef.Mask(padding_mask=real), state=model.init_state(2))
    assert out.logits.std() > 0.1
    got = torch.cat(logits, 1)
    torch.testing.assert_close(got[real], out.logits[real], rtol=0, atol=3e-5)
    if member in NODES["LinearAttention"]:
        after = named_tensors(out.state)
        for name, t in fed.items():
            expected = after[name.removeprefix("state.")]
            torch.testing.assert_close(torch.from_numpy(t), expected, rtol=1e-4, atol=1e-4)
    other = start_tensors(model, made.inputs, 3)
    with pytest.raises(Exception, match=r"(?i)shape|dimension|broadcast|axes|size"):
        session.run(None, given | {name: t.numpy() for name, t in other.items()})


def test_the_standards_operator_needs_a_newer_onnxruntime_or_runs(tmp_path):
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    model = model_of("linear", "lm")
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32):
        with pytest.raises(UnsupportedError, match=r"opset 27.*1\.32 or.*operators='onnxruntime'"):
            export_onnx(model, tmp_path / "model.onnx", state=True)
        assert not any(tmp_path.iterdir())
    else:
        made = export_onnx(model, tmp_path / "model.onnx", state=True)
        written = onnx.load(made.path)
        domains = {node.domain for node in written.graph.node if node.op_type == "LinearAttention"}
        opsets = {opset.domain: opset.version for opset in written.opset_import}
        assert (domains, opsets) == ({""}, {"": 27})


def test_a_state_that_changes_its_form_or_is_not_there_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    encoder = model_of("attention", "classify-text")
    with pytest.raises(UnsupportedError, match="no exact streaming form"):
        export_onnx(encoder, tmp_path / "model.onnx", state=True)
    with pytest.raises(UnsupportedError, match="'universal' changes its form"):
        export_onnx(model_of("universal", "lm"), tmp_path / "model.onnx", state=True)


def test_an_operator_that_onnx_does_not_have_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.delitem(FORMS, _running_average)
    with pytest.raises(UnsupportedError, match=r"everyformer.running_average.*export_program"):
        export_onnx(model_of("aft-simple", "lm"), tmp_path / "model.onnx")


@pytest.mark.full("seconds of exporting")
def test_a_dtype_that_onnxruntime_does_not_compute_in_is_an_error(tmp_path):
    pytest.importorskip("onnxruntime")
    model = model_of("attention", "classify-text").bfloat16()
    with pytest.raises(UnsupportedError, match=r"in bfloat16.*export model\.float"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not any(tmp_path.iterdir())


def test_tasks_and_endings_that_cannot_be_are_errors(tmp_path):
    pixels = ef.create_model("attention", "pixels", width=8, layers=1, heads=1, image=(1, 3, 3))
    with pytest.raises(UnsupportedError, match=r"'pixels'.*lm, mlm, classify-text"):
        export_program(pixels, tmp_path / "model.pt2")
    with pytest.raises(ConfigError, match=r"\.pt2"):
        export_program(model_of("attention", "lm"), tmp_path / "model.pt")
    for write in (export_onnx, export_program):
        with pytest.raises(ConfigError, match=r"not a Linear: .*torch\.onnx\.export"):
            write(torch.nn.Linear(2, 2), tmp_path / "model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_a_package_the_extra_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*everyformer\[export\]"):
        export_onnx(model_of("attention", "lm"), tmp_path / "model.onnx")


def test_rows_put_in_order_by_counting_are_those_put_in_order_by_sorting(monkeypatch):
    rows = importlib.import_module("everyformer.engines.rows")
    padding_mask = torch.rand(5, 13) > torch.rand(5, 1)
    sorted_order = rows.compact(torch.randn(5, 13, 2), padding_mask).order
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert torch.equal(rows.compact(torch.randn(5, 13, 2), padding_mask).order, sorted_order)


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


def members_of_the_docs():
    """(member, whether it is written, whether causal alone) of docs/python.md."""
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    _, *rows = text.split("| to ONNX |")[1].split("\n\n")[0].split("\n| ")
    for row in rows:
        kind, names = row.split(" | ")
        both, _, causal = names.strip(" |\n").partition("; causal alone: ")
        for name in both.split(", "):
            yield name, kind != "refused", False
        for name in filter(None, causal.split(", ")):
            yield name, True, True


def test_the_table_of_the_docs_names_every_member_that_reads_text():
    able = {m.name for m in ef.list_members() if {"lm", "mlm"} & set(m.tasks)}
    assert able == {name for name, *_ in members_of_the_docs()}


@pytest.mark.full("2 to 20 s each", parts=12)
@pytest.mark.parametrize(("member", "written", "causal"), list(members_of_the_docs()))
@graphs_take_all_pairs
def test_the_table_of_the_docs(tmp_path, member, written, causal):
    pytest.importorskip("onnxruntime")
    tasks = [task for task in ("lm", "mlm") if task in ef.info(member).tasks]
    for task in tasks:
        options = {"aft-local": {"window": 4}, "aft-conv": {"kernel": 3}}.get(member, {})
        model = model_of(member, task, **options, width=16, layers=2, max_length=160)
        if written and not (causal and task == "mlm"):
            assert export_onnx(model, tmp_path / "model.onnx").difference < 1e-4
        else:
            with pytest.raises(ef.EveryformerError):
                export_onnx(model, tmp_path / "model.onnx")


ENDINGS = ["pt2", pytest.param("onnx", marks=pytest.mark.full("what a file tells is written once"))]
SECONDS = pytest.mark.full("2 s each")


@pytest.mark.full("exports and judges, seconds")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("member", "task", "causality"),
    [
        ("attention", "lm", "held"),
        pytest.param("bert", "mlm", "exempt", marks=SECONDS),
        pytest.param("amlp", "classify-text", "exempt", marks=SECONDS),
    ],
)
def test_own_exports_are_read_by_own_laws(member, task, causality, ending, tmp_path, monkeypatch):
    """The file tells what it reads, that it may be given a mask, and whether it is causal."""
    monkeypatch.chdir(tmp_path)
    file = f"model.{ending}"
    {"onnx": export_onnx, "pt2": export_program}[ending](model_of(member, task), file)
    subject = target(file)
    longest = {"lm": None}.get(task, 150)
    assert (subject.inputs.vocabulary, subject.max_length()) == (30, longest)
    laws = ("causality", "padding", "batch", "determinism")
    found = {one.law: one.status for one in check(subject, laws=laws)}
    assert found == dict.fromkeys(laws, "held") | {"causality": causality}
    with pytest.raises(ConfigError, match="reads token ids below 30, not token ids below 64"):
        target(file, vocabulary=64)


@pytest.mark.parametrize("ending", ENDINGS)
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
