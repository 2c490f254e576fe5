"""What is refused for its size: exactly what is more than is free, with both numbers."""

import pytest

from everyformer.core.errors import ResourceError
from sequence_laws.memory import check_memory, size

GIB = 1 << 30


@pytest.mark.parametrize("free", [GIB // 8, GIB, 5 * GIB])
def test_a_byte_more_than_is_free_is_refused(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: free)
    check_memory(free, "a table", "choose less")
    with pytest.raises(ResourceError, match=r"a table needs at least .*free: choose less"):
        check_memory(free + 1, "a table", "choose less")


def test_what_is_told_is_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: 3 * GIB // 2)
    with pytest.raises(ResourceError) as refused:
        check_memory(2.5 * GIB, "a table", "choose less")
    assert str(refused.value) == (
        "a table needs at least 2.5 GiB of memory, but 1.5 GiB are free: choose less"
    )


def test_less_than_64_mib_is_not_worth_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: 0)
    check_memory((64 << 20) - 1, "a table", "choose less")
    with pytest.raises(ResourceError):
        check_memory(64 << 20, "a table", "choose less")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536 << 20, "1.5 GiB"),
        (1 << 40, "1.0 TiB"),
        (5000 << 40, "5,000.0 TiB"),
    ],
)
def test_bytes_are_read_in_steps_of_1024(count: int | None, words: str) -> None:
    assert size(count) == words
