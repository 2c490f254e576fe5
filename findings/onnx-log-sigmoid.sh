#!/usr/bin/env bash
# torch 2.13.0 (CPU), onnx and onnxscript as below, onnxruntime 1.31.1.
# Guess: a file that torch.onnx.export writes of torch.nn.functional.logsigmoid gives what torch gives, to
#   rounding: it is a function of its own because log(sigmoid(x)) loses all digits of a negative x.
# What happens: the file holds just that, Sigmoid and Log. onnxruntime's float32 Sigmoid is 0 below about
#   -18, so of -20 the file gives -inf where torch gives -20; of -16 it gives -16.6.
# Why a user cares: log-sigmoids are the logarithms of gates: decays of linear attention with gates, forget
#   gates, losses of binary classifiers. A gate that is shut becomes -inf, sums over time become NaN, far
#   from the layer at fault. Write -softplus(-x) in the module: that is exported as Softplus and agrees.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import sys

import onnx
import onnxruntime
import torch
from torch.nn.functional import logsigmoid, softplus


class LogSigmoid(torch.nn.Module):
    def forward(self, x):
        return logsigmoid(x)


class Softplus(torch.nn.Module):
    def forward(self, x):
        return -softplus(-x)


def exported(module, x):
    torch.onnx.export(module, (x,), "module.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession("module.onnx")
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return [node.op_type for node in onnx.load("module.onnx").graph.node], torch.from_numpy(found)


x = torch.tensor([0.0, -4.0, -8.0, -16.0, -20.0, -40.0])
operators, found = exported(LogSigmoid(), x)
print("torch", torch.__version__, "onnxruntime", onnxruntime.__version__)
print("the file holds", operators)
print("x          ", x.tolist())
print("torch gives", logsigmoid(x).tolist())
print("file gives ", found.tolist())
other, right = exported(Softplus(), x)
print("-softplus(-x)", other, right.tolist())
as_said = (
    operators == ["Sigmoid", "Log"]
    and torch.allclose(found[:3], logsigmoid(x)[:3], rtol=1e-3)
    and bool(found[3] < -16.3)
    and bool(torch.isinf(found[4:]).all())
    and torch.allclose(right, logsigmoid(x), rtol=1e-5)
)
sys.exit(not as_said)
PY
echo "as described"
