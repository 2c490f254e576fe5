#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, torch 2.13.0 (CPU).
# Guess: a Llama in float64, which is chosen to compare numbers, gives what it gives in float32 with more digits,
#   by attention "eager" as by "sdpa".
# What happens: by "eager" a row that is padded on the left is NaN at every position, real ones too; in float32 and
#   bfloat16 it is right. The mask is filled with the least number of float64, and the softmax is computed in
#   float32, where that number is -inf: a query that may see nothing becomes NaN, and the next layer
#   reads it with weight 0. In float32 the least number is finite, so the same query gives an even mean.
# Why a user cares: float64 is where one looks for what is rounding and what is a fault, and "eager" is the
#   reference that other implementations are held to. There the two together say NaN of a model that is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
for release in 5.23.0 5.24.0; do
"$folder/venv/bin/pip" install --quiet "transformers==$release"
cd "$folder"
TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import sys

import torch
import transformers

sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = transformers.LlamaConfig(vocab_size=128, max_position_embeddings=64, **sizes)
x = torch.randint(3, 128, (2, 8), generator=torch.Generator().manual_seed(0))
real = torch.ones(2, 8, dtype=torch.long)
real[1, :2] = 0


def outputs(dtype, way):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval().to(dtype)
    model.set_attn_implementation(way)
    with torch.no_grad():
        return model(x, attention_mask=real, use_cache=False).logits


print("transformers", transformers.__version__, "torch", torch.__version__)
found = {}
for dtype in (torch.float32, torch.bfloat16, torch.float64):
    for way in ("eager", "sdpa"):
        found[dtype, way] = outputs(dtype, way)
        print(dtype, way, "NaN at", int(found[dtype, way].isnan().any(-1).sum()), "of 16 positions")
wide = found[torch.float64, "eager"]
as_said = (
    bool(wide[1].isnan().all())
    and not bool(wide[0].isnan().any())
    and not any(y.isnan().any() for key, y in found.items() if key != (torch.float64, "eager"))
    and torch.allclose(found[torch.float32, "eager"][1, 2:], found[torch.float32, "sdpa"][1, 2:], atol=1e-5)
)
sys.exit(not as_said)
PY
done
echo "as described"
