"""Devices of any kind: what is read, what is cast, and constants that are copied once."""

import copy
import pickle

import pytest
import torch

from everyformer.core.devices import Constant, as_now, autocasts, full_precision, readable
from sequence_laws.inputs import seed_all

KINDS = ("cpu", "meta")


def test_numbers_are_readable_where_there_are_some_and_no_compiler_follows():
    seen = []

    def note(x):
        seen.append(readable(x))
        return x + 1

    assert readable(torch.ones(2))
    assert not readable(torch.ones(2, device="meta"))
    torch.compile(note, backend="eager", fullgraph=False)(torch.ones(2))
    assert seen == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_is_known_where_there_is_one(kind):
    available = torch.amp.is_autocast_available(kind)
    assert not autocasts(kind)
    if available:
        with torch.autocast(kind, torch.bfloat16):
            assert autocasts(kind)
            with full_precision(kind):
                assert not autocasts(kind)
    with full_precision(kind):
        assert not autocasts(kind)


def test_autocast_is_again_as_it_was():
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    with torch.autocast("cpu", torch.float16):
        inside = as_now("cpu")
    outside = as_now("cpu")
    with inside():
        assert (x @ y).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ y).dtype == torch.bfloat16
        with outside():
            assert (x @ y).dtype == torch.float32
    with as_now("meta")():
        assert (x @ y).dtype == torch.float32


def test_a_constant_is_copied_once_to_a_device_and_stays_what_it_is():
    constant = Constant(torch.arange(3))
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert constant.on(cpu) is constant.numbers
    with torch.inference_mode():
        first = constant.on(meta)
    assert first.is_meta
    assert not first.is_inference()
    assert constant.on(meta) is first
    assert constant.on(cpu).tolist() == [0, 1, 2]


def test_a_compiled_function_reads_the_copy_that_there_is():
    constant = Constant(torch.arange(3, device="meta"))
    constant.copies[torch.device("cpu")] = torch.arange(3)
    added = torch.compile(lambda x: x + constant.on(x.device), backend="eager", fullgraph=True)
    assert added(torch.ones(3)).tolist() == [1, 2, 3]


def test_a_graph_makes_the_copy_once_and_serves_before_and_after_it():
    first, second = Constant(torch.arange(3)), Constant(torch.arange(4))
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module.forward

    def add(x):
        return x + first.on(x.device), x + second.on(x.device)[:3]

    torch._dynamo.reset()
    added = torch.compile(add, backend=count, fullgraph=True)
    x = torch.ones(3, device="meta")
    added(x)
    copies = [dict(c.copies) for c in (first, second)]
    assert [c[torch.device("meta")].shape[0] for c in copies] == [3, 4]
    add(x)
    added(x)
    assert len(graphs) == 1
    assert all(
        c.copies[x.device] is known[x.device]
        for c, known in zip((first, second), copies, strict=True)
    )
    assert not [n for n in graphs[0].graph.nodes if n.target in ("to", "_to_copy")]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_of_a_constant_has_its_numbers_and_no_device(again):
    constant = Constant(torch.arange(3))
    constant.on(torch.device("meta"))
    other = again(constant)
    assert other.numbers.tolist() == [0, 1, 2]
    assert other.copies == {}


def test_a_tracer_leaves_no_copy_behind():
    from torch._subclasses.fake_tensor import FakeTensorMode

    constant = Constant(torch.arange(3))
    with FakeTensorMode(allow_non_fake_inputs=True):
        constant.on(torch.device("meta"))
    assert constant.copies == {}


@pytest.mark.parametrize("there", [True, False])
def test_other_devices_are_seeded_where_there_are_some(there, monkeypatch):
    called = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: there)
    monkeypatch.setattr(torch, "manual_seed", called.append)
    seed_all(3)
    assert called == [3] * there
    monkeypatch.undo()
    seed_all(2**40 + 5)
    first = torch.rand(3)
    torch.manual_seed(2**40 + 5)
    assert torch.equal(first, torch.rand(3))
