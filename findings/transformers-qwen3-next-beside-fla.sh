#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, fla-core 0.5.1 (flash-linear-attention), triton 3.7.1, torch 2.13.0 (CPU).
# Guess: a model that runs on a CPU in plain torch goes on doing so when an optional package with faster kernels
#   for GPUs is installed beside it: kernels are taken where the tensors are on a GPU.
# What happens: which functions compute the gated delta rule of Qwen3-Next is settled when the model's module is
#   imported, by whether `fla` can be imported, whatever device the model is on. `fla` can: without a GPU it only
#   warns. Then every forward pass on a CPU, of training or evaluation, raises an error out of a Triton kernel
#   that does not name transformers or a way back. Without the package the same program is right.
# Why a user cares: an environment for a GPU is where models are tried on small inputs first, tests run on CPUs,
#   and checkpoints are looked at. Moving a model to a CPU is not enough: hide the package before the
#   first import of the model (sys.modules["fla"] = None), or keep it out of that environment.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 transformers==5.23.0
cat > "$folder/forward.py" <<'PY'
import sys

import torch
import transformers

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 64}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
linear = {f"linear_num_{kind}_heads": 2 for kind in ("key", "value")}
linear |= {f"linear_{kind}_head_dim": 16 for kind in ("key", "value")}
config = transformers.Qwen3NextConfig(
    **sizes, **heads, **linear, mlp_only_layers=[0, 1], num_experts=1,
    layer_types=["linear_attention", "full_attention"],
)
model = transformers.Qwen3NextForCausalLM(config).eval()
found = []
for use_cache in (False, True):
    try:
        model(torch.arange(8)[None], use_cache=use_cache)
        found.append("runs")
    except Exception as error:
        where = error.__traceback__
        while where.tb_next is not None:
            where = where.tb_next
        package = "fla" if "/fla/" in where.tb_frame.f_code.co_filename else "another place"
        if "/triton/" in where.tb_frame.f_code.co_filename:
            package = "triton"
        found.append(f"{type(error).__name__} in {package}")
        print("  ", type(error).__name__, str(error).splitlines()[0][:120])
print("transformers", transformers.__version__, "torch", torch.__version__, sys.argv[1], found)
sys.exit((found == ["runs", "runs"]) != (sys.argv[1] == "without"))
PY
for release in 5.23.0 5.24.0; do
    "$folder/venv/bin/pip" install --quiet "transformers==$release"
    TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" -W ignore "$folder/forward.py" without
    "$folder/venv/bin/pip" install --quiet fla-core==0.5.1 triton==3.7.1
    TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" -W ignore "$folder/forward.py" with
    "$folder/venv/bin/pip" uninstall --quiet --yes fla-core triton
done
echo "as described"
