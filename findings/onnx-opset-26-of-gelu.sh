#!/usr/bin/env bash
# torch 2.13.0 (CPU), onnx 1.23.2, onnxscript 0.7.2, onnxruntime 1.31.1.
# Guess: torch.onnx.export(..., opset_version=26) of a model with a GELU writes a file of opset 26, or raises.
# What happens: the exporter translates GELU into the standard's node Gelu, which opset 20 brought, and then
#   hands the file to a converter of versions that knows no way on from there. It logs that it changed
#   nothing and returns as if all were well: the file says opset 18, in which there is no such node. Up to
#   opset 25 the same call writes what was asked for.
# Why a user cares: every GPT and BERT has a GELU. The export passes, the file is saved, and only the program
#   that loads it says that it is no valid model. Ask for opset 25 or less, or look at the file's
#   opset_import after each export.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> log.txt
import sys

import onnx
import onnxruntime
import torch


class Activation(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x, approximate="tanh")


def exported(version):
    """The opset of the file that is written, its nodes, and what onnxruntime says of it."""
    program = torch.onnx.export(
        Activation().eval(), (torch.rand(2, 3),), dynamo=True, opset_version=version, verbose=False
    )
    program.save("gelu.onnx")
    written = onnx.load("gelu.onnx")
    try:
        onnxruntime.InferenceSession("gelu.onnx", providers=["CPUExecutionProvider"])
        said = "loads"
    except Exception as error:
        said = str(error).splitlines()[0]
    return written.opset_import[0].version, [node.op_type for node in written.graph.node], said


print("torch", torch.__version__, "onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
found = {version: exported(version) for version in (25, 26)}
for version, (opset, nodes, said) in found.items():
    print(f"asked for opset {version}: the file has opset {opset}, nodes {nodes}; onnxruntime: {said}")
as_said = found[25][0] == 25 and found[26][:2] == (18, ["Gelu"]) and "Gelu" in found[26][2]
sys.exit(not as_said)
PY
echo "as described"
