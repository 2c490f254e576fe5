"""Four decoders of transformers 5.9.0 see the future (huggingface/transformers, issue 48745; mended
in 5.18): the law of causality finds these, and holds for the one beside them."""

import json
import os
import subprocess
import sys

import numpy
import pytest

LEAKING = (
    "RoFormerForCausalLM",
    "BigBirdForCausalLM",
    "RemBertForCausalLM",
    "MegatronBertForCausalLM",
)
VERSIONS = ("transformers==5.9.0", "huggingface-hub<2")


@pytest.mark.full("installs another version of transformers beside: 2 min")
def test_decoders_that_were_reported_to_see_the_future_are_found(tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path)]
    # numpy as it is: two of them would be in one process
    wanted = [*VERSIONS, f"numpy=={numpy.__version__}"]
    installed = subprocess.run([*pip, *wanted], capture_output=True, check=False)
    if installed.returncode:
        pytest.skip("that version cannot be installed beside")
    names = [f"hf:{name}" for name in (*LEAKING, "BertLMHeadModel")]
    command = [sys.executable, "-m", "everyformer", "verify", *names, "--laws", "causality"]
    told = subprocess.run(
        [*command, "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {one["member"]: one["status"] for one in json.loads(told.stdout)}
    assert found == dict.fromkeys(LEAKING, "failed") | {"BertLMHeadModel": "held"}
    assert told.returncode == 1
