#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, torch 2.13.0 (CPU).
# Guess: a model that is made from a configuration starts as its kind is trained: what a recurrent layer has read is
#   still there some tokens later, and training decides what to forget. Mamba-2 of the same library starts so: its
#   gates take steps of 0.001 to 0.1, so a state keeps most of itself at each token.
# What happens: the gated delta rule of Qwen3-Next has the same gate, exp(-A softplus(a + dt_bias)), but starts with
#   dt_bias = 1, that is steps of 1.3, and A uniform up to 16. The median head keeps some millionths of its state at a
#   token; eight tokens later two heads of 32 have a hundredth left of what they read. Nothing warns, and the loss falls, as
#   that of the short convolution alone would.
# Why a user cares: whoever trains this class from the beginning, to compare it with others, finds that it cannot recall
#   (23% of the answers of a small task of four pairs of key and value). With steps drawn as Mamba-2's are, which the
#   authors' program draws too (dt_bias is their inverse softplus), the same sizes, data and rate reach 99%.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/start.py" <<'PY'
import math
import sys

import torch
import transformers

torch.manual_seed(0)
HEADS, LATER = 32, 8
linear = {f"linear_num_{kind}_heads": HEADS for kind in ("key", "value")}
linear |= {f"linear_{kind}_head_dim": 8 for kind in ("key", "value")}
delta = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(
    hidden_size=64, num_hidden_layers=1, intermediate_size=128, vocab_size=64, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, mlp_only_layers=[0], num_experts=1,
    layer_types=["linear_attention"], **linear,
))
mamba = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(
    hidden_size=64, num_hidden_layers=1, vocab_size=64, num_heads=HEADS, head_dim=4, state_size=16, n_groups=1,
))


def kept(model):
    """What a state keeps at a token, of each head."""
    named = {name.rsplit(".")[-1]: value for name, value in model.named_parameters()}
    step = torch.nn.functional.softplus(named["dt_bias"].detach())
    return (-named["A_log"].detach().exp() * step).exp()


def left(model):
    """Heads that have a hundredth of what they read left, LATER tokens later."""
    return int((kept(model) ** LATER > 0.01).sum())


as_it_starts = float(kept(delta).median()), left(delta)
beside = float(kept(mamba).median()), left(mamba)
bias = next(value for name, value in delta.named_parameters() if name.endswith("dt_bias"))
step = torch.empty(HEADS).uniform_(math.log(1e-3), math.log(0.1)).exp()
bias.data.copy_(step + torch.log(-torch.expm1(-step)))
mended = float(kept(delta).median()), left(delta)
print("transformers", transformers.__version__, "torch", torch.__version__)
for name, (keeps, heads) in (
    ("Qwen3-Next", as_it_starts), ("Qwen3-Next, Mamba-2's steps", mended), ("Mamba-2", beside)
):
    print(f"   {name:28} the median head keeps {keeps:.2g} a token; {LATER} later {heads} of {HEADS} remember")
told = as_it_starts[0] < 0.001 and as_it_starts[1] < 4 and min(mended[1], beside[1]) > 20
sys.exit(not told)
PY
for release in 5.23.0 5.24.0; do
    "$folder/venv/bin/pip" install --quiet "transformers==$release"
    TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" -W ignore "$folder/start.py"
done
echo "as described"
