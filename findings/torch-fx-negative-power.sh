#!/usr/bin/env bash
# torch 2.13.0 (CPU).
# Guess: a traced function computes what the function computes; `(-1) ** x`, the usual way to write
#   alternating signs, gives 1, -1, 1, -1 for x = 0, 1, 2, 3.
# What happens: torch.fx writes the traced operation as the Python text `-1 ** x`, which Python reads as
#   -(1 ** x). symbolic_trace and torch.compile(backend="eager") give -1 everywhere, without a warning.
#   torch.export and the backends aot_eager and inductor do not go through that text, and are right.
# Why a user cares: backend="eager" is what people take to see whether a graph is captured at all, and to
#   check other backends against; a model with such signs (cofactors, alternating series, butterfly and
#   Hadamard products, some position codes) changes its result by being looked at. A number that is
#   taken to a power by a tensor should stand in a tensor: torch.tensor(-1) ** x.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import sys

import torch


def signs(x):
    return (-1) ** x


x = torch.arange(4)
traced = torch.fx.symbolic_trace(signs)
found = {
    "the function": signs(x),
    "symbolic_trace": traced(x),
    "compile, eager": torch.compile(signs, backend="eager")(x),
    "compile, aot_eager": torch.compile(signs, backend="aot_eager")(x),
}
print("torch", torch.__version__)
for name, values in found.items():
    print(f"{name:20} {values.tolist()}")
print("the text of the trace:", next(line.strip() for line in traced.code.splitlines() if "**" in line))
right, wrong = [1, -1, 1, -1], [-1, -1, -1, -1]
expected = [right, wrong, wrong, right]
sys.exit([values.tolist() for values in found.values()] != expected)
PY
echo "as described"
