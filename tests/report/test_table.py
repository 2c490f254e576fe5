"""The table to decide from: groups, tiers, spreads, limits, and what is bold."""

import re
from typing import Any

import pytest
from report_results import made_up, many, same

from everyformer.report.selection import styles_of
from everyformer.report.table import table
from everyformer.report.terminal import render


def _table(results: Any) -> str:
    """The table as it is read; what a script sorts it by is left out."""
    return re.sub(r' data-value="[^"]*"', "", table(results, styles_of(results)))


def test_columns_speak_and_have_units() -> None:
    """ "s to slowest" and "beats attention from" did not."""
    assert re.findall(r'<th scope="col">([^<]+)</th>', _table(made_up())) == [
        "member",
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
        "layer faster than attention from (tokens)",
    ]


def test_columns_that_need_it_are_explained_below() -> None:
    text = _table(made_up())
    assert "Seconds to match the last row: of training, until as good as that one" in text
    assert "Layer faster than attention: one layer, forward" in text
    alone = _table(made_up(("gmlp",), qualities=(2.0,)) | {"bench": []})
    assert "match the last row:" not in alone
    assert "Layer faster" not in alone


def test_many_members_are_one_list_with_families_and_differences_to_the_baseline() -> None:
    results = many(31)
    text = _table(results)
    families = [row["group"] for row in results["rows"]]
    assert re.findall(r"<th scope=.row.>.*?<small>([^<]+)</small></th>", text) == families
    shown = [int(n) for n in re.findall(r'<tr class="group(\d+)">', text)]
    order = [*styles_of(results).families]
    assert [order[n] for n in shown] == families
    assert "difference to attention" in text
    assert re.search(r"attention<small>.*?<td>baseline</td>", text)
    assert "<td>+0.030</td>" in text
    assert "<tr class" not in _table(many(8))


def test_cells_hold_the_numbers_that_a_table_is_sorted_by() -> None:
    results = made_up()
    text = table(results, styles_of(results))
    assert '<td class="best" data-value="2.0">2.000<small>' in text
    assert '<td data-value="100000">100,000</td>' in text
    assert "<td>baseline</td>" in text


@pytest.mark.parametrize(
    ("mean", "title", "brief"),
    [
        ("mean_depth", "steps of layers that a token takes", "steps a token"),
        ("mean_span", "tokens that a head looks back, ramp included", "span of a head"),
    ],
)
def test_what_differs_by_token_or_head_has_a_column(mean: str, title: str, brief: str) -> None:
    results: Any = made_up()
    assert title not in _table(results)
    before = render(results)
    results["rows"][0][mean] = 2.345
    text = _table(results)
    assert f'<th scope="col">{title}</th>' in text
    assert "<td>2.35</td>" in text or "<td>2.34</td>" in text
    assert brief in render(results)
    assert brief not in before


def test_a_difference_that_is_not_shown_has_no_sign() -> None:
    results = many(9)
    results["rows"][1]["quality"] = results["rows"][0]["quality"] + 1e-6
    results["rows"][2]["quality"] = results["rows"][0]["quality"] - 0.25
    text = _table(results)
    assert "<td>0.000</td>" in text
    assert "<td>\u22120.250</td>" in text


def test_limits_are_written_once_below_the_table() -> None:
    results = many(8)
    for row in results["rows"]:
        row["limits"] = []
    for row in results["rows"][1:4]:
        row["limits"] = ["reads no more than 256 tokens"]
    results["rows"][2]["limits"].append("writes slowly")
    text = _table(results)
    assert text.count("reads no more than 256 tokens") == 1
    assert re.findall(r"<sup>([^<]+)</sup>", text) == ["1", "1, 2", "1"]
    said = render(results)
    assert said.count(": each reads no more than 256 tokens") == 1
    assert f"{results['rows'][2]['member']}: writes slowly" in said


def test_numbers_stand_with_their_spread() -> None:
    text = _table(made_up())
    assert "1,000<small>990 to 1,010</small>" in text
    assert "0.6<small>0.55 to 0.65</small>" in text
    assert "2.000<small>1.900 to 2.100</small>" in text
    assert "130,000<small>1.30 x the first</small>" in text


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
    assert f"<td>{cell}</td></tr>" in _table(results)
    assert re.search(rf"^gmlp .* {cell}$", render(results), re.MULTILINE)
    results["bench"] = [p for p in results["bench"] if p["member"] == "gmlp"]
    assert "<td>not measured</td></tr>" in _table(results)


def test_a_member_whose_tables_end_says_so_in_place_of_its_time() -> None:
    results: Any = made_up()
    gmlp = results["rows"][1]
    gmlp |= {"decode_ms": {"64": 1.5}, "decode_bytes": {"64": 2048}, "longest": 256}
    text = _table(results)
    assert "<td>-<small>reads at most 256</small></td>" in text
    assert re.search(r"^gmlp .* 1.5 \(0.45 to 0.55\) +reads at most 256 ", render(results), re.M)
    gmlp["longest"] = 1024  # it could, and yet there is no number
    assert "reads at most" not in _table(results)


def test_bold_is_what_can_be_told_from_the_rest() -> None:
    """All that share the best one's interval; nobody where there are doubts or who waits."""
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.1, 3.0))
    assert re.findall(r'<td class="best">(2[^<]+)', _table(results)) == ["2.000", "2.100"]
    results["verdict"]["doubts"] = ["the machine had other work"]
    assert 'class="best"' not in _table(results)
    assert 'class="best"' not in _table(made_up(waiting=("rope",)))


def test_quality_is_bold_by_tiers_whatever_intervals_say() -> None:
    """Seed for seed members are told apart whose own intervals share values."""
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.1, 3.0))
    bold = lambda: re.findall(r'<td class="best">([23]\.\d{3})<', _table(results))  # noqa: E731
    for row, tier in zip(results["rows"], "abc", strict=True):
        row["letters"] = [tier]
    assert bold() == ["2.000"]
    for row in results["rows"]:
        row |= {"interval": [1.0, 4.0], "letters": ["a" if row["quality"] < 3 else "b"]}
    assert bold() == ["2.000", "2.100"]


def test_two_names_of_one_function_are_bold_together() -> None:
    results = made_up(("attention", "sinusoidal", "gmlp"), qualities=(2.0, 2.0, 3.0))
    _, second, third = results["rows"]
    second["peak_bytes"] = third["peak_bytes"] = 6_000_000
    memory = lambda text: re.findall(r'<td class="best">(\d[^<]+ MiB)', text)  # noqa: E731
    assert memory(_table(results)) == ["4.8 MiB"]
    same(results, "attention", "sinusoidal")
    assert memory(_table(results)) == ["4.8 MiB", "5.7 MiB"]


def test_tiers_are_letters() -> None:
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.15, 2.3))
    assert re.findall(r"</th><td>([a-z ]+)</td>", _table(results)) == ["a", "a b", "b"]
