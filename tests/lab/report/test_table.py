"""The table to decide from: tiers, spreads, limits, and what is bold, as plain cells."""

from typing import Any

import pytest

from everyformer.lab.report.table import Cell, cells, limits
from report_results import made_up, many, same

THREE = ("attention", "gmlp", "linear")
CROSSOVER = "layer faster than attention from (tokens)"


def _columns(results: Any) -> dict[str, list[Cell]]:
    """The cells of each column, best member first."""
    columns, rows = cells(results)
    return {column.title: [own[n] for _, own in rows] for n, column in enumerate(columns)}


def _texts(results: Any, column: str) -> list[str]:
    """What stands in the first column whose title has those words."""
    found = next(own for title, own in _columns(results).items() if column in title)
    return [cell.text for cell in found]


def _bold(results: Any, column: str) -> list[str]:
    found = next(own for title, own in _columns(results).items() if column in title)
    return [cell.text for cell in found if cell.best]


def test_columns_speak_and_have_units() -> None:
    """ "s to slowest" and "beats attention from" did not."""
    assert list(_columns(made_up())) == [
        "tier",
        "bits per byte (lower is better)",
        "parameters",
        "training speed (tokens per second)",
        "memory of training",
        "seconds to match the last row",
        "writing after 64 tokens (ms per token)",
        "writing after 1,024 tokens (ms per token)",
        "memory a stream after 64 tokens",
        "memory a stream after 1,024 tokens",
        CROSSOVER,
    ]


def test_cells_hold_numbers_with_their_spread_and_what_a_table_is_sorted_by() -> None:
    first, second = (list(own) for own in zip(*_columns(made_up()).values(), strict=True))
    assert first == [
        Cell("a"),
        Cell("2.000", "1.900 to 2.100", True, 2.0),
        Cell("100,000", "", False, 100_000),
        Cell("1,000", "990 to 1,010", False, 1000.0),
        Cell("4.8 MiB", "", False, 5_000_000),
        Cell("3", "", True, 3.0),
        Cell("0.5", "0.45 to 0.55", False, 0.5),
        Cell("0.6", "0.55 to 0.65", True, 0.6),
        Cell("1.0 KiB", "", False, 1024),
        Cell("1.0 KiB", "", True, 1024),
        Cell("baseline"),
    ]
    assert second[2:4] == [
        Cell("130,000", "1.30 x the first", False, 130_000),
        Cell("2,000", "1,980 to 2,020", True, 2000.0),
    ]


def test_of_many_members_differences_to_the_baseline_are_shown() -> None:
    """One that is not shown has no sign."""
    results = many(9)
    results["rows"][1]["quality"] = results["rows"][0]["quality"] + 1e-6
    results["rows"][2]["quality"] = results["rows"][0]["quality"] - 0.25
    shown = _texts(results, "difference to attention")
    assert shown[:3] == ["baseline", "0.000", "\u22120.250"]
    assert shown[3].startswith("+0.")
    assert "difference to attention" not in _columns(many(8))


@pytest.mark.parametrize(
    ("mean", "title"),
    [
        ("mean_depth", "steps of layers that a token takes"),
        ("mean_span", "tokens that a head looks back, ramp included"),
    ],
)
def test_what_differs_by_token_or_head_has_a_column(mean: str, title: str) -> None:
    """As has the rate that was chosen."""
    results: Any = made_up()
    assert not {title, "learning rate"} & {*_columns(results)}
    results["rows"][0][mean] = 2.375
    results["config"]["lr_grid"] = [1e-3, 3e-3]
    for row, lr in zip(results["rows"], (1e-3, 3e-3), strict=True):
        row["lr"] = lr
    assert _texts(results, title) == ["2.38", "-"]
    assert _texts(results, "learning rate") == ["0.001", "0.003"]


def test_a_limit_is_written_once_with_all_of_whom_it_is_true() -> None:
    results = many(8)
    names = [row["member"] for row in results["rows"]]
    for row in results["rows"]:
        row["limits"] = []
    for row in results["rows"][1:4]:
        row["limits"] = ["reads no more than 256 tokens"]
    results["rows"][2]["limits"].append("writes slowly")
    assert limits(results) == {
        "reads no more than 256 tokens": names[1:4],
        "writes slowly": names[2:3],
    }


@pytest.mark.parametrize(
    ("low", "high", "from_", "cell"),
    [
        (0.9, 1.1, 512, "512"),
        # the quartiles of 512 tokens overlap with those of attention, 1.8 to 2.2 times 1.3 ms
        (0.9, 2.3, None, "not settled up to 512"),
        (3.0, 4.0, None, "not up to 512"),
    ],
)
def test_a_crossover_is_a_length_or_not_settled_or_not_reached(
    low: float, high: float, from_: int | None, cell: str
) -> None:
    results: Any = made_up()
    for point in results["bench"]:
        if point["member"] == "gmlp" and point["length"] == 512:
            point["quartiles"] = [low * point["seconds"], high * point["seconds"]]
    results["rows"][1]["beats_attention_from"] = from_
    assert _texts(results, CROSSOVER) == ["baseline", cell]
    results["bench"] = [p for p in results["bench"] if p["member"] == "gmlp"]
    assert _texts(results, CROSSOVER) == ["baseline", "not measured"]


def test_a_member_whose_tables_end_says_so_in_place_of_its_time() -> None:
    results: Any = made_up()
    gmlp = results["rows"][1]
    gmlp |= {"decode_ms": {"64": 1.5}, "decode_bytes": {"64": 2048}, "longest": 256}
    assert _texts(results, "writing after 1,024") == ["0.6", "reads at most 256"]
    gmlp["longest"] = 1024  # it could, and yet there is no number
    assert _texts(results, "writing after 1,024") == ["0.6", "-"]


def test_bold_is_what_can_be_told_from_the_rest() -> None:
    """All that share the best one's interval; nobody where there are doubts or who waits."""
    results = made_up(THREE, qualities=(2.0, 2.1, 3.0))
    assert _bold(results, "bits per byte") == ["2.000", "2.100"]
    results["verdict"]["doubts"] = ["the machine had other work"]
    for open_ in (results, made_up(waiting=("rope",))):
        assert not any(cell.best for own in _columns(open_).values() for cell in own)


def test_speeds_are_bold_only_where_spreads_do_not_overlap() -> None:
    results = made_up(THREE, qualities=(2.0, 2.5, 3.0))
    assert _bold(results, "training speed") == ["3,000"]
    assert _bold(results, "writing after 1,024") == ["0.6"]
    results["rows"][1]["speed_spread"] = [1900.0, 3500.0]
    assert _bold(results, "training speed") == ["2,000", "3,000"]
    results["rows"][2]["tokens_per_second"] = None
    assert _bold(results, "training speed") == ["2,000"]


def test_quality_is_bold_by_tiers_whatever_intervals_say() -> None:
    """Seed for seed members are told apart whose own intervals share values."""
    results = made_up(THREE, qualities=(2.0, 2.1, 3.0))
    for row, tier in zip(results["rows"], "abc", strict=True):
        row["letters"] = [tier]
    assert _bold(results, "bits per byte") == ["2.000"]
    for row in results["rows"]:
        row |= {"interval": [1.0, 4.0], "letters": ["a" if row["quality"] < 3 else "b"]}
    assert _bold(results, "bits per byte") == ["2.000", "2.100"]


def test_two_names_of_one_function_are_bold_together() -> None:
    results = made_up(("attention", "sinusoidal", "gmlp"), qualities=(2.0, 2.0, 3.0))
    _, second, third = results["rows"]
    second["peak_bytes"] = third["peak_bytes"] = 6_000_000
    assert _bold(results, "memory of training") == ["4.8 MiB"]
    same(results, "attention", "sinusoidal")
    assert _bold(results, "memory of training") == ["4.8 MiB", "5.7 MiB"]
    assert _bold(results, "writing after 1,024") == ["0.6", "1.6"]


def test_tiers_are_letters() -> None:
    results = made_up(THREE, qualities=(2.0, 2.15, 2.3))
    assert _texts(results, "tier") == ["a", "a b", "b"]
