"""Compiled steps without a compiler."""

import json

import pytest
from torch.utils._pytree import tree_leaves, tree_unflatten

from everyformer.generation import programs
from everyformer.generation.programs import Program


def lies_as_traced(traced, given):
    """Whether all steps in memory that do not grow are those of the trace."""
    dims = zip(traced.stride(), given.stride(), given.shape, strict=True)
    return all(a == b for a, b, size in dims if isinstance(a, int) and size != 1)


@pytest.fixture
def graphs(monkeypatch, tmp_path):
    """The graphs that are made, by their files, which run as they were traced."""
    made = {}

    def build(traced, about, file):
        made[file] = traced, [tuple(span) for span in json.loads(about)["spans"]]
        file.parent.mkdir(exist_ok=True)
        file.touch()

    def loaded(model, file):
        traced, spans = made[file]
        program = traced.module(check_guards=False)
        placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
        inputs = [
            node.meta["val"] for node in placeholders[-len(tree_leaves(traced.example_inputs)) :]
        ]
        program.load_state_dict({f"model.{k}": v for k, v in model.state_dict().items()})

        def run(tensors):
            # a compiled program would read other numbers
            assert all(lies_as_traced(*pair) for pair in zip(inputs, tensors, strict=True))
            args, kwargs = tree_unflatten(tensors, traced.call_spec.in_spec)
            return program(*args, **kwargs)

        return Program(run, spans, {})

    monkeypatch.setattr(programs, "build", build)
    monkeypatch.setattr(programs, "loaded", loaded)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return made
