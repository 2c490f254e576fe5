#!/usr/bin/env bash
# torch 2.13.0 (CPU).
# Guess: what torch.compile makes of a model is the same on a developer's machine and on a build server: the
#   variable CI, which GitHub, GitLab and others set for every job, changes how tools print, at most.
# What happens: inductor reads CI. A custom operator (torch.library.custom_op) for which a decomposition was
#   registered too (torch._decomp.register_decomposition, which is how torch.onnx.export is told what to write
#   for it) compiles without the variable; with any value of it, torch.compile raises "make_fallback(...): a
#   decomposition exists, we should switch to it", advice for torch's own developers. If the operator was compiled
#   once before it got its decomposition, the same process goes on to compile it.
# Why a user cares: the same commit works at home and fails on the build server, and there only when the tests run
#   in an order in which the decomposition comes first. Keep decompositions out of torch's global table: hand them
#   to ExportedProgram.run_decompositions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"
# what was compiled without the variable is found again with it
export TORCHINDUCTOR_FORCE_DISABLE_CACHES=1
cat > compiled.py <<'PY'
import sys

import torch
from torch._decomp import register_decomposition


@torch.library.custom_op("shop::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def compiled():
    torch.compiler.reset()
    try:
        return torch.compile(lambda x: doubled(x) + 1)(torch.ones(3)).tolist()
    except Exception as error:
        return "refused" if "a decomposition exists" in str(error) else repr(error)


if sys.argv[1] == "compiled-before":
    compiled()
register_decomposition(torch.ops.shop.doubled.default)(lambda x: x + x)
print(compiled())
PY
one=$(env -u CI "$folder/venv/bin/python" compiled.py first 2> one.txt)
two=$(CI=true "$folder/venv/bin/python" compiled.py first 2> two.txt)
three=$(CI=true "$folder/venv/bin/python" compiled.py compiled-before 2> three.txt)
"$folder/venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
echo "without CI: $one"
echo "CI=true: $two"
echo "CI=true, compiled before the decomposition was registered: $three"
if [ "$one/$two/$three" != "[3.0, 3.0, 3.0]/refused/[3.0, 3.0, 3.0]" ]; then
  exit 1
fi
echo "as described"
