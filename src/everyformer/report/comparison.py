"""`write_report`: one self-contained page about a comparison, for the desk and for the phone.

Everything that comes from data, members or errors is escaped; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.results import Results, Row, finished, points
from everyformer.core.config import to_dict
from everyformer.core.errors import UnknownNameError
from everyformer.core.files import write_text
from everyformer.core.memory import size
from everyformer.family import info
from everyformer.report.figures import draw_all
from everyformer.report.learned import learned_of_all
from everyformer.report.style import FORMATS, Styles, inline_svg, save_figure
from everyformer.report.words import (
    UNITS,
    answer,
    brief,
    budget,
    count,
    interval,
    notes,
    quality,
    question,
)

ROOMY = 6.5
"""inches from which a picture takes the whole width of the page"""
PICTURE_TITLES = {
    "samples": "Drawn images",
    "features-weights": "Weights by features, and exact",
    "features": "Features of keys",
    "sort": "Blocks sorted in",
    "position-bias": "Position biases",
    "spatial": "Spatial gate",
    "terms": "Terms of the scores",
    "encodings": "Learned positions",
}
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""control character -> its picture"""


def write_report(results: Results, folder: Path, *, complete: bool = True) -> Path:
    """Write ``report.html`` and ``figures/`` into ``folder``; the page's path.

    Args:
        results: what `comparison.collect.collect` returns, or results.json.
        complete: whether nothing more will come; before that the page is brief.
    """
    folder = Path(folder)
    styles = Styles(results["config"]["members"])
    sections = [
        _figures(results, folder),
        _samples(results),
        _learned(results, folder) if complete else "",
        _data(results),
        _environment(results),
        _repeat(results),
        _config(results),
    ]
    here = files("everyformer.report")
    page = Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=safe(f"everyformer: {', '.join(results['config']['members'])}"),
        style=(here / "page.css").read_text(encoding="utf-8"),
        question=safe(question(results)),
        answer=safe(answer(results)),
        table=_table(results, styles),
        notes=_list(notes(results)),
        sections="\n".join(filter(None, sections)),
        version=safe(results["environment"]["packages"].get("everyformer") or ""),
    )
    path = folder / "report.html"
    write_text(path, page, parents=True)
    return path


def safe(value: Any) -> str:
    """Any text as text of a page: escaped, control characters made visible."""
    text = str(value).replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
    return html.escape(text.translate(_VISIBLE))


def _table(results: Results, styles: Styles) -> str:
    columns = _columns(results)
    rows = finished(results)
    best = [_winners(rows, cell, better) for _, cell, _, better in columns]
    lines = []
    for row in results["rows"]:
        colour = styles[row["member"]].colour
        name = f'<span class="swatch" style="background:{colour}"></span>{safe(row["member"])}'
        name += "*" if row.get("leaks") else ""
        if row["status"] != "done":
            what = f'<td class="failed" colspan="{len(columns)}">failed: {safe(row["error"])}</td>'
            lines.append(f'<tr><th scope="row">{name}</th>{what}</tr>')
            continue
        cells = []
        for (_, cell, written, _), winners in zip(columns, best, strict=True):
            value = cell(row)
            mark = ' class="best"' if row["member"] in winners else ""
            cells.append(f"<td{mark}>{safe('-' if value is None else written(value))}</td>")
        lines.append(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{safe(title)}</th>' for title, *_ in columns)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">member</th>{head}</tr>'
        f"</thead><tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="why">Bold: best of its column.<span class="narrow"> The table scrolls sideways.'
        "</span></p>"
    )


Column = tuple[str, Callable[[Row], Any], Callable[[Any], str], str | None]


def _columns(results: Results) -> list[Column]:
    """Title, value, its text, and which way is better ('lower', 'higher' or None)."""
    metric, rows = results["metric"], finished(results)
    of = rows[0]["interval_of"] if rows else "seeds"
    columns: list[Column] = [
        (UNITS[metric], lambda r: r["quality"], lambda v: quality(v, metric), results["better"]),
        (f"95% interval over {of}", lambda r: interval(r, metric), str, None),
        ("parameters", lambda r: r["parameters"], "{:,}".format, None),
        ("ratio to first", lambda r: r["parameter_ratio"], "{:.2f}".format, None),
        ("training tokens/s", lambda r: r["tokens_per_second"], "{:,.0f}".format, "higher"),
        ("peak memory", lambda r: r["peak_bytes"], size, "lower"),
        ("s to quality of the slowest", lambda r: r["seconds_to_slowest"], brief, "lower"),
    ]
    for context in sorted({c for row in rows for c in row["decode_ms"]}, key=int):
        columns.append((f"ms/token after {context}", _decoding(context), brief, "lower"))
    if any(row["state_bytes"] is not None for row in rows):
        columns.append(("state", lambda r: r["state_bytes"], size, "lower"))
    columns.append(("beats attention from", lambda r: _beats(r, results), str, None))
    return columns


def _decoding(context: str) -> Callable[[Row], Any]:
    return lambda row: row["decode_ms"].get(context)


def _beats(row: Row, results: Results) -> str:
    if row["member"] == "attention":
        return "is the baseline"
    timed = [p for p in points(results) if p.work == "pass" and p.seconds]
    pairs = {p.member for p in timed} & {row["member"], "attention"}
    if len(pairs) < 2:
        return "not measured"
    start = row["beats_attention_from"]
    longest = max(p.length for p in timed)
    return f"{start:,} tokens" if start else f"not up to {longest:,}"


def _winners(rows: list[Row], cell: Callable[[Row], Any], better: str | None) -> set[str]:
    """Members with the best value of a column, when there is a choice."""
    known = [value for value in map(cell, rows) if value is not None]
    if better is None or len(known) < 2 or min(known) == max(known):
        return set()
    best = min(known) if better == "lower" else max(known)
    return {row["member"] for row in rows if cell(row) == best}


def _figures(results: Results, folder: Path) -> str:
    parts = []
    for n, drawing in enumerate(draw_all(results)):
        for form in FORMATS:
            save_figure(drawing.figure, folder / "figures" / f"{drawing.name}.{form}")
        svg = inline_svg(drawing.figure, f"f{n}", drawing.caption)
        parts.append(_figure(drawing.title, svg, drawing.caption))
    inner = f'<div class="figures">{"".join(parts)}</div>' if parts else ""
    return _section("figures", "The figures", inner)


def _samples(results: Results) -> str:
    parts = [
        f'<div><h3 class="member">{safe(row["member"])}</h3><pre class="wrap">'
        f'<span class="prompt">{safe(sample["prompt"])}</span>{safe(sample["text"])}</pre></div>'
        for row in finished(results)
        if (sample := row["sample"])
    ]
    about = "<p>The grey prompt is from the validation data; what follows is the member's own "
    about += "(temperature 0.8, first seed).</p>"
    inner = f'{about}<div class="samples">{"".join(parts)}</div>' if parts else ""
    return _section("samples", "Samples", inner)


def _learned(results: Results, folder: Path) -> str:
    parts = []
    for n, learned in enumerate(learned_of_all(results, folder)):
        parts.append(f'<div class="member"><h3>{safe(learned.member)}</h3>{_paper(learned.member)}')
        parts.append(f'<p class="why">{safe(learned.why)}</p></div>' if learned.why else "</div>")
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in learned.member)
        parts.append('<div class="figures">')
        for name, figure in learned.pictures.items():
            save_figure(figure, folder / "figures" / f"{stem}-{name}.png")
            caption = str(figure.get_label())
            kind = next((k for k in PICTURE_TITLES if name.startswith(k)), name)
            rest = name.removeprefix(kind).replace("-", " ")
            title = PICTURE_TITLES.get(kind, kind.replace("-", " ").capitalize())
            title += f",{rest}" if rest else ""
            svg = inline_svg(figure, f"p{n}-{name}", caption)
            full = "full" if figure.get_figwidth() > ROOMY else ""
            parts.append(_figure(title, svg, caption, full))
        parts.append("</div>")
    return _section("learned", "What each member learned", "".join(parts))


def _paper(member: str) -> str:
    try:
        row = info(member)
    except UnknownNameError:
        return ""
    source = f"{row.title}. {row.authors} {row.year}"
    source += f", arXiv {row.arxiv}" if row.arxiv else ""
    return f"<p>{safe(source)}. {safe(row.cost.formula)}.</p>"


def _data(results: Results) -> str:
    data = results["data"]
    rows = [("data", data["name"]), ("split", data["split"]), ("task", data["task"])]
    if data["tokenizer"] is not None:
        rows.append(("tokenizer", f"{data['tokenizer']}, {data['vocabulary']:,} tokens"))
    if data["classes"]:
        rows.append(("classes", ", ".join(data["classes"])))
    if data["image"] is not None:
        rows.append(("images", " x ".join(map(str, data["image"])) + " (channels, rows, columns)"))
    rows.append(("sequence", f"{data['length']:,} tokens"))
    rows.append(("budget", f"{budget(results['config'])} for each training"))
    for row in finished(results):
        spent = f"{row['steps']:,.0f} steps, {count(row['tokens'])} tokens"
        rows.append(("used", f"{row['member']}: {spent}, {row['flops']:.3g} FLOPs"))
    rows.append(("fingerprint", data["fingerprint"]))
    return _section("data", "Data and budget", _facts(rows))


def _environment(results: Results) -> str:
    used = results["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in used["packages"].items())
    revision = used["git_revision"] or "none"
    rows = [
        ("machine", f"{used['processor']}, {used['cores']} cores, {used['platform']}"),
        ("accelerator", used["accelerator"] or "none: CPU"),
        ("threads", used["torch_threads"]),
        ("Python", used["python"]),
        ("packages", packages),
        ("git revision", revision + (" with changes" if used["git_changes"] else "")),
    ]
    return _section("environment", "Environment", _facts(rows))


def _repeat(results: Results) -> str:
    command = results["command"]
    if command:
        kept = [word for word in shlex.split(command) if word not in ("--resume", "--overwrite")]
        repeated = shlex.join(kept)
    else:
        changed = changes(results["config"], to_dict(CompareConfig()))
        given = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        repeated = f"import everyformer as ef\nef.compare({given})"
    return _section("repeat", "To repeat it", f'<pre class="wrap">{safe(repeated)}</pre>')


def changes(config: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """The part of nested options that differs from the default."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        usual = default.get(name)
        if isinstance(value, dict) and isinstance(usual, dict):
            if inner := changes(value, usual):
                found[name] = inner
        elif value != usual and name not in ("resume", "overwrite"):
            found[name] = value
    return found


def _config(results: Results) -> str:
    text = json.dumps(results["config"], indent=2, ensure_ascii=False, default=str)
    return f"<details><summary>The full configuration</summary><pre>{safe(text)}</pre></details>"


def _section(name: str, title: str, inner: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{inner}</section>' if inner else ""


def _figure(title: str, svg: str, caption: str, kind: str = "") -> str:
    about = f"<figcaption>{safe(caption)}</figcaption>"
    return f'<figure class="{kind}"><h3>{safe(title)}</h3>{svg}{about}</figure>'


def _facts(rows: Iterable[tuple[str, Any]]) -> str:
    return f"<dl>{''.join(f'<dt>{safe(k)}</dt><dd>{safe(v)}</dd>' for k, v in rows)}</dl>"


def _list(items: list[str]) -> str:
    if not items:
        return ""
    marked = (re.sub(r"--[a-z-]+", r"<code>\g<0></code>", safe(item)) for item in items)
    return f'<ul class="notes">{"".join(f"<li>{item}</li>" for item in marked)}</ul>'
