"""What docs/hugging-face.md shows is so: its programs run, its commands end well, its errors are
those that are raised."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.core.errors import EveryformerError

transformers = pytest.importorskip("transformers")

PAGE = (Path(__file__).parents[1] / "docs" / "hugging-face.md").read_text(encoding="utf-8")
SECTIONS = {part.splitlines()[0]: part for part in re.split(r"(?m)^## ", PAGE)[1:]}
ERRORS = re.findall(r"(?m)^\| `(\w+\(.*)` \| (.*) \|$", PAGE)


def test_all_of_the_page_is_looked_at() -> None:
    assert len(SECTIONS) == 5
    assert all("```python" in part for part in SECTIONS.values())
    assert len(ERRORS) == 9


@pytest.mark.parametrize("section", SECTIONS)
def test_its_programs_and_commands_run(
    section: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for language, code in re.findall(r"```(\w+)\n(.*?)```", SECTIONS[section], re.DOTALL):
        if language == "python":
            exec(compile(code, section, "exec"), names)
            continue
        for line in code.splitlines():
            assert main(shlex.split(line)[1:]) == 0, line
    for line in re.findall(r"`(everyformer convert [^`]*)` ends with", SECTIONS[section]):
        said = re.search(r'ends with "(.*?) \.\.\."', SECTIONS[section])
        assert said is not None
        assert main(shlex.split(line)[1:]) == 2
        assert said[1] in capsys.readouterr().err


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=64, n_embd=8, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    config = transformers.T5Config(vocab_size=64, d_model=8, d_kv=4, num_layers=1, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def albert() -> Any:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 8, "intermediate_size": 8}
    return transformers.AlbertModel(transformers.AlbertConfig(**sizes, num_attention_heads=2))


def vit() -> Any:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.ViTModel(transformers.ViTConfig(**sizes))


def mistral() -> Any:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 8, "intermediate_size": 8,
                             "num_hidden_layers": 1, "num_key_value_heads": 1}  # fmt: skip
    config = transformers.MistralConfig(**sizes, num_attention_heads=2, sliding_window=4)
    return transformers.MistralForCausalLM(config)


@pytest.mark.parametrize(("call", "said"), ERRORS)
def test_its_errors_are_raised(call: str, said: str) -> None:
    from everyformer.interop.hf_mixers import replace_attention

    def mixed(member: str, build: Any = gpt2) -> Any:
        model = build()
        replace_attention(model, member)
        return model

    names = {"replace_attention": replace_attention, "mixed": mixed, "x": torch.ones(1, 8).long()}
    with pytest.raises(EveryformerError, match=re.escape(said)):
        eval(call, globals() | names)
