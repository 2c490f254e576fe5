"""What a token costs when the text before it is long: which lengths, which bytes, which limits."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everyformer.core.tasks import TASKS
from everyformer.genes.config import ModelConfig
from everyformer.lab.compare import decoding
from everyformer.lab.compare.decoding import contexts, decode
from everyformer.models.build import build_model, configure

WIDTH, LAYERS = 16, 2


def small(member: str, length: int = 16) -> ModelConfig:
    sizes = {"width": WIDTH, "layers": LAYERS, "heads": 2}
    return configure(member, "lm", max_length=length, vocabulary=11, **sizes)


@pytest.mark.parametrize(
    ("task", "asked", "length", "expected"),
    [
        ("lm", None, 256, (64, 1024)),
        ("lm", None, 1024, (64, 1024)),
        ("lm", None, 4000, (64, 1024, 4000)),
        ("lm", None, 100_000, (64, 1024, 16384)),
        ("lm", (512, 16, 512), 100_000, (16, 512)),
        ("lm", (), 4000, ()),
        ("mlm", None, 4000, ()),
        ("classify-text", (8,), 4000, ()),
    ],
)
def test_tokens_are_timed_after_few_and_many_and_as_many_as_the_texts_have(
    task: str, asked: tuple[int, ...] | None, length: int, expected: tuple[int, ...]
) -> None:
    dataset: Any = SimpleNamespace(task=task, does=TASKS[task], length=length)
    assert contexts(asked, dataset) == expected


def test_memory_of_a_stream_is_that_of_its_keys_and_values_or_of_its_sums() -> None:
    kept = decode(small("attention"), (4, 12), {}).state_bytes
    # two tensors a layer, a row of the width a token, four bytes a number
    assert kept["12"] - kept["4"] == 8 * 2 * LAYERS * WIDTH * 4
    sums = decode(small("linear"), (4, 12), {}).state_bytes
    assert sums["4"] == sums["12"] > 2 * LAYERS * (WIDTH // 2) ** 2 * 4


@pytest.mark.parametrize("member", ["attention", "linear", "gmlp"])
def test_a_state_that_is_filled_in_pieces_is_that_of_the_whole(
    member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "CHUNK", 3)
    model = build_model(small(member)).eval()
    ids = torch.randint(0, 11, (1, 10))
    with torch.inference_mode():
        pieces, whole = decoding._fill(model, ids), model(ids, state=model.init_state(1)).state
        assert pieces is not None
        assert whole is not None
        assert pieces.nbytes == whole.nbytes
        after = [model(ids[:, :1], state=state).logits for state in (pieces, whole)]
    torch.testing.assert_close(*after)


def test_a_member_whose_tables_end_is_timed_as_far_as_they_go() -> None:
    found = decode(small("gmlp"), (15, 16, 17), {})
    assert (found.seconds.keys(), found.state_bytes.keys()) == ({"15", "16"}, {"15", "16"})
    assert found.longest == 16
    free = decode(small("attention"), (17,), {})
    assert (free.seconds.keys(), free.longest) == ({"17"}, None)


@pytest.mark.parametrize(("room", "fills"), [(2**20, 2), (0, 4)])
def test_a_long_text_is_read_once_for_all_rounds_as_long_as_there_is_room(
    room: int, fills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: Any = {}
    read: list[int] = []
    fill = decoding._fill

    def counted(model: Any, ids: torch.Tensor) -> Any:
        read.append(ids.shape[1])
        return fill(model, ids)

    monkeypatch.setattr(decoding, "_fill", counted)
    monkeypatch.setattr(decoding, "ROOM", room)
    sizes = [decode(small("attention"), (4, 12), filled).state_bytes for _ in range(2)]
    assert read == [4, 12, 4, 12][:fills]
    # the timed tokens are no part of what was kept
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("slow", "calls"), [(1e9, 6), (0.0, 1)])
def test_a_model_without_a_state_reads_all_again_and_once_where_that_takes_long(
    slow: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "SLOW", slow)
    monkeypatch.setattr(decoding, "initial_state", lambda model, rows: None)
    model = build_model(small("attention")).eval()
    lengths: list[int] = []
    model.register_forward_pre_hook(lambda m, given: lengths.append(given[0].shape[1]))
    with torch.inference_mode():
        decoding._token(model, torch.randint(0, 11, (1, 8)), None)
    assert lengths == [9, 10, 11, 12, 13, 14][:calls]
    found = decode(small("attention"), (8,), {})
    assert (found.seconds.keys(), found.state_bytes) == ({"8"}, {})


@pytest.mark.full("a comparison, seconds")
def test_lengths_that_are_asked_for_stand_in_every_table(compare: Any) -> None:
    words = ("gmlp", "attention", "--budget-seconds", "0.05")
    done = compare(*words, "--decode", "8", "32")
    assert done.code == 0, done.err
    assert done.row("attention")["decode_ms"].keys() == {"8", "32"}
    gmlp = done.row("gmlp")
    assert (gmlp["decode_ms"].keys(), gmlp["longest"]) == ({"8"}, 16)
    assert re.search("ms a token after 32 .*memory a stream after 32", done.out)
    assert re.search(r"^gmlp .*reads at most 16 ", done.out, re.MULTILINE)
    lines = {line["member"]: line for line in done.table()}
    assert float(lines["attention"]["ms_after_32"]) == done.row("attention")["decode_ms"]["32"]
    assert int(lines["attention"]["state_bytes_after_32"]) > 32 * 2 * 16 * 4
    assert lines["gmlp"]["ms_after_32"] == lines["gmlp"]["state_bytes_after_32"] == ""
    # other lengths are measured again, and what seconds are worth stays
    again = compare("--resume", "--decode", "4", small=False)
    assert again.row("attention")["decode_ms"].keys() == {"4"}
    assert again.row("attention")["steps"] == done.row("attention")["steps"]
    assert again.row("attention")["state_bytes"] == again.row("attention")["decode_bytes"]["4"]
