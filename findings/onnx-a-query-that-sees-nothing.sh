#!/usr/bin/env bash
# torch 2.13.0 (CPU), onnx and onnxscript as below, onnxruntime 1.31.1.
# Guess: a file that torch.onnx.export writes of scaled_dot_product_attention gives what torch gives, for
#   every mask that torch takes.
# What happens: for a query that a boolean mask lets see no key, torch gives zeros. In the file the same
#   query gets the plain mean of all values, those that are hidden from it too. The exporter warns of nothing.
# Why a user cares: rows of padding and packed documents have such queries. A mean is a usual number, so
#   nothing shows; what reads those places (a pooled mean, a cache, a next layer without that mask) gets
#   values of tokens that were hidden on purpose. Multiply the output by mask.any(-1) before the export.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import sys

import onnxruntime
import torch
from torch.nn.functional import scaled_dot_product_attention


class Attention(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
inputs = (q, k, v, mask)
expected = Attention()(*inputs)
torch.onnx.export(Attention().eval(), inputs, "attention.onnx", dynamo=True)
session = onnxruntime.InferenceSession("attention.onnx")
names = [one.name for one in session.get_inputs()]
given = dict(zip(names, (one.numpy() for one in inputs), strict=True))
found = torch.from_numpy(session.run(None, given)[0])
mean = v.mean(2)
print("torch", torch.__version__, "onnxruntime", onnxruntime.__version__)
print("query 2 sees no key; torch gives", expected[0, 0, 1].tolist())
print("the file gives              ", found[0, 0, 1].tolist())
print("the mean of all values is   ", mean[0, 0].tolist())
same = [torch.allclose(found[0, 0, n], expected[0, 0, n], atol=1e-5) for n in range(3)]
as_said = same == [True, False, True] and not expected[0, 0, 1].any()
sys.exit(not (as_said and torch.allclose(found[0, 0, 1], mean[0, 0], atol=1e-5)))
PY
echo "as described"
