"""The Triton kernels compiled for a GPU where none is: the interpreter takes what no compiler does,
such as a variable that changes its shape in a loop."""

import importlib
import importlib.util

import pytest
import torch

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64"}


def compiled(kernel, arguments, options):
    """Whether ``kernel`` compiles for these arguments, as a launch would do it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    given = dict(zip(kernel.arg_names, arguments, strict=False))
    given |= {n: options.pop(n) for n in kernel.arg_names if n in options}
    signature, constants = {}, {}
    for n, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
        elif value is None or value == 1 or parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(n,)] = value
        else:
            signature[parameter.name] = "i32"
    source = ASTSource(kernel, signature, constants)
    # unsaid, Triton 3.9 warns of it
    options = {"enable_fp_fusion": True, **options}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that are compiled in the place of being launched."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed (it is for Linux only)")
    from triton.runtime.jit import JITFunction

    names = set()

    def run(kernel, *arguments, grid, warmup, **options):
        assert compiled(kernel, arguments, options)
        names.add(kernel.__name__)

    monkeypatch.setattr(JITFunction, "run", run)
    return names


@pytest.mark.full("half a minute of compiling", parts=5)
@pytest.mark.parametrize(
    ("dtype", "keys", "causal"), [(torch.float32, 20, True), (torch.bfloat16, 1, False)]
)
def test_kernels_of_bands_compile(dtype, keys, causal, launched):
    call = importlib.import_module("everyformer.engines.fused.banded.call")
    shapes = (2, 70, 3, keys), (2, 70, 3, 20), (3, 70 if causal else 1, 5)
    inputs = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    o, lse = call.forward(*inputs, causal, 0)
    call.backward(*inputs, o, lse, o, causal, 0)
    assert {"sum_blocks", "average", "differentiate_far", "_differentiate"} <= launched
    assert {"differentiate_tokens", "differentiate_bias"} <= launched


@pytest.mark.full("half a minute of compiling", parts=5)
@pytest.mark.parametrize(
    ("dtype", "keys", "rank", "causal"),
    [(torch.float32, 20, None, True), (torch.bfloat16, 1, 5, False)],
)
def test_kernels_of_dense_biases_compile(dtype, keys, rank, causal, launched):
    call = importlib.import_module("everyformer.engines.fused.dense.call")
    k, v, *bias = (
        torch.zeros(shape, dtype=dtype)
        for shape in ((2, 70, 3, keys), (2, 70, 3, 20), (3, 70, rank or 70), (3, 70, rank or 70))
    )
    given = k, v, bias[0], bias[1] if rank else None, torch.zeros(3).long() if causal else None
    o, lse, saved = call.forward(*given, causal, True)
    call.backward(*given, o, lse, saved, o, causal)
    assert {"average", "differentiate_tokens", "differentiate_rows"} <= launched
    assert ("differentiate_columns" in launched) is (rank is not None)


@pytest.mark.full("half a minute of compiling", parts=5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_distances_compile(dtype, launched):
    call = importlib.import_module("everyformer.engines.fused.distances.call")
    q, table, numbers = torch.zeros(2, 3, 70, 20), torch.zeros(3, 70, 20), torch.zeros(3, 70)
    q, table = q.to(dtype), table.to(dtype)
    for tables, factors in (((table, numbers, table), False), ((None, numbers, None), True)):
        given = q, q if tables[0] is not None else None, q, q, tables
        o, lse = call.forward(*given, True, factors)
        call.backward(*given, o, lse, o, True, factors)
    assert {"average", "differentiate_queries", "differentiate_tokens"} <= launched
    assert "differentiate_columns" in launched


@pytest.fixture
def variants(monkeypatch):
    """What Triton would compile instead of launching it: the variants of each kernel, by name."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed (it is for Linux only)")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    backend, found = make_backend(GPUTarget("cuda", 90, 32)), {}

    def run(kernel, *arguments, grid, warmup, **options):
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        _, specialised, _ = bind(*arguments, **options)
        found.setdefault((kernel.__module__, kernel.__name__), set()).add(str(specialised))

    monkeypatch.setattr(JITFunction, "run", run)
    return found


def of_bands(length):
    k, bias = torch.zeros(2, length, 3, 16), torch.zeros(3, length, 5)
    call = importlib.import_module("everyformer.engines.fused.banded.call")
    o, lse = call.forward(k, k, bias, True, 0)
    call.backward(k, k, bias, o, lse, o, True, 0)


def of_factors(length):
    k, factor = torch.zeros(2, length, 3, 16), torch.zeros(3, length, 16)
    call = importlib.import_module("everyformer.engines.fused.dense.call")
    o, lse, saved = call.forward(k, k, factor, factor, None, True, True)
    call.backward(k, k, factor, factor, None, o, lse, saved, o, True)


def of_features(length):
    call = importlib.import_module("everyformer.engines.fused.kernel.call")
    q, sums = torch.zeros(2, 3, length, 16), torch.zeros(2, 3, 16, 17)
    given = (q, q, q, None, None, None)
    y, totals, after, _, starts, tops = call.forward(*given, sums, None, "positive", 1e-6)
    call.backward(*given, y, totals, after, starts, tops, y.mT.mT, None, "positive", 1e-6)


def of_distances(length):
    q, table, numbers = (torch.zeros(s) for s in ((2, 3, length, 16), (3, length, 16), (3, length)))
    call = importlib.import_module("everyformer.engines.fused.distances.call")
    given = q, q, q, q, (table, numbers, table)
    o, lse = call.forward(*given, True, False)
    call.backward(*given, o, lse, o, True, False)


def of_running_sums(length):
    k = torch.zeros(2, length, 3, 16)
    call = importlib.import_module("everyformer.engines.fused.running")
    lse, o = call.forward(k, k)
    call.backward(k, k, lse, o, o, o)


@pytest.mark.parametrize("of", [of_bands, of_factors, of_features, of_distances, of_running_sums])
def test_one_compilation_serves_all_lengths(of, variants):
    for length in (1, 6, 16, 70, 256):
        of(length)
    assert variants
    assert {name: len(found) for name, found in variants.items() if len(found) > 1} == {}
