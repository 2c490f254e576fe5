"""`write_report`: one self-contained page about a comparison, for the desk and for the phone.

Everything that comes from data, members or errors is escaped; nothing is loaded from elsewhere.
"""

import re
import shlex
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.results import Results, TableRow, finished
from everyformer.core.config import to_dict
from everyformer.core.errors import UnknownNameError
from everyformer.family import info
from everyformer.report.facts import facts, now
from everyformer.report.figures import draw_all
from everyformer.report.headline import answer
from everyformer.report.learned import learned_of_all, pictured
from everyformer.report.notes import notes
from everyformer.report.remedies import remedies
from everyformer.report.selection import crowded, styles_of
from everyformer.report.style import Styles, inline_svg, save_svg, svg_text, swatch
from everyformer.report.table import table
from everyformer.report.words import brief, budget, count, question, safe, title
from everyformer.system.files import write_text
from everyformer.system.plain import to_json
from everyformer.training.config import BUDGETS

MAIN = ("quality", "cost-training", "cost-writing")
"""figures that stand above the fold, beside the curve of the loss against the budget"""
ROOMY = 6.5
"""inches from which a picture takes the whole width of the page"""
TALL = 3.6
"""inches that a figure has with its caption; one that is higher takes the place of several"""
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


def write_report(results: Results, folder: Path, *, complete: bool = True) -> Path:
    """Write ``report.html`` and ``figures/`` into ``folder``; the page's path.

    Args:
        results: what `comparison.collect.collect` returns, or results.json.
        complete: False writes what a comparison has while it goes on, in well under a second:
            the table and the curves of losses, without a look into any model.
    """
    folder = Path(folder)
    path = folder / "report.html"
    text = page(results, folder, complete=complete, figures=folder / "figures")
    write_text(path, text, parents=True)
    return path


def page(
    results: Results, folder: Path, *, complete: bool = True, figures: Path | None = None
) -> str:
    """The page as one text that loads nothing.

    Args:
        folder: of the comparison, whose runs are looked into.
        complete: as of `write_report`.
        figures: where each figure is written as SVG too; None: nowhere.
    """
    styles = styles_of(results)
    main, more = _figures(results, figures, styles, complete)
    sections = [main, _next(results), more]
    if complete:
        sections += [_samples(results), _learned(results, folder, figures)]
    sections += [_budget(results), _environment(results), _repeat(results), _config(results)]
    package = files("everyformer.report")
    return Template((package / "page.html").read_text(encoding="utf-8")).substitute(
        title=safe(f"everyformer: {title(results)}"),
        style=(package / "page.css").read_text(encoding="utf-8") + _filters(styles),
        script=(package / "page.js").read_text(encoding="utf-8"),
        kicker=safe(title(results)),
        question=safe(question(results)),
        answer=safe(answer(results, short=True)),
        facts=_first_facts(results),
        data=_data(results),
        sure=_sure(results),
        filter=_filter(styles) if crowded(results) else "",
        table=table(results, styles),
        notes=_list(notes(results)),
        sections="\n".join(filter(None, sections)),
        version=safe(results["environment"]["packages"].get("everyformer") or ""),
    )


def _first_facts(results: Results) -> str:
    """Facts that are read without scrolling, below the answer."""
    words, command = now(results)
    items = [(name, _code(safe(text))) for name, text in facts(results)]
    if words:
        command = f'<pre class="wrap">{safe(command)}</pre>' if command else ""
        items.append(("What now", _code(safe(words)) + command))
    inner = "".join(f"<div><dt>{safe(name)}</dt><dd>{text}</dd></div>" for name, text in items)
    return f'<dl class="facts">{inner}</dl>' if inner else ""


def _sure(results: Results) -> str:
    above, _ = now(results)
    items = "".join(
        f"<li>{safe(_capital(doubt))}. <strong>{_code(safe(_capital(helps)))}.</strong></li>"
        for doubt, remedy in remedies(results)
        for helps in ["what helps stands above" if remedy == above else remedy]
    )
    return _section(
        "sure", "Doubts, and what helps", f'<ul class="doubts">{items}</ul>' if items else ""
    )


def _filter(styles: Styles) -> str:
    """A box for each family, which shows or hides its members; it needs no script."""
    boxes = "".join(
        f'<label><input type="checkbox" id="show{n}" checked> '
        f"{swatch(colour)}{safe(family)}</label>"
        for n, (family, colour) in enumerate(styles.families.items())
    )
    return f'<fieldset class="filter"><legend>Show</legend>{boxes}</fieldset>'


def _filters(styles: Styles) -> str:
    """Rules of the boxes for rows of the table and lines of the figures."""
    return "\n".join(
        f"body:has(#show{n}:not(:checked)) :is(.group{n}, [id*='-group{n}-']) {{ display: none; }}"
        for n in range(len(styles.families))
    )


def _next(results: Results) -> str:
    items = "".join(
        f'<li>{safe(words)}<pre class="wrap">{safe(command)}</pre></li>'
        for words, command in results["next"]
    )
    return _section("next", "What now", f'<ul class="next">{items}</ul>' if items else "")


def _figures(
    results: Results, folder: Path | None, styles: Styles, complete: bool
) -> tuple[str, str]:
    """The main figures, and the others below a fold."""
    main: list[str] = []
    more: list[str] = []
    training = results["config"]["training"]
    spent = next((one for one in BUDGETS if training[f"budget_{one}"] is not None), "tokens")
    for n, drawing in enumerate(draw_all(results, complete=complete)):
        svg = svg_text(drawing.figure)
        if folder is not None:
            save_svg(svg, folder / f"{drawing.name}.svg")
        picture = inline_svg(svg, f"f{n}", drawing.caption, styles.titles())
        rows = min(3, round(drawing.figure.get_figheight() / TALL))
        kind = f"rows{rows}" if rows > 1 else ""
        place = main if drawing.name in (*MAIN, f"loss-{spent}") else more
        place.append(_figure(drawing.title, picture, drawing.caption, kind))
    about = ""
    if crowded(results) and main:
        about = (
            '<p class="why">Colours are those of the families. The best few and the baseline are '
            "named; the other members are pale, each named where the pointer rests on it.</p>"
        )
    inner = f'{about}<div class="figures">{"".join(main)}</div>' if main else ""
    rest = f'<div class="figures">{"".join(more)}</div>' if more else ""
    return _section("figures", "The figures", inner), _fold("more", "More figures", rest)


def _samples(results: Results) -> str:
    best = [row["member"] for row in pictured(results)]
    texts = {row["member"]: _sample(row) for row in finished(results)}
    first = "".join(text for member, text in texts.items() if member in best)
    rest = "".join(text for member, text in texts.items() if member not in best)
    about = "<p>The grey prompt is from the validation data; what follows is the member's own "
    about += "(temperature 0.8, first seed).</p>"
    inner = f'{about}<div class="samples">{first}</div>' if first else ""
    if rest:
        inner += _folded("Samples of the other members", f'<div class="samples">{rest}</div>')
    return _fold("samples", "Samples", inner)


def _sample(row: TableRow) -> str:
    sample = row["sample"]
    if not sample:
        return ""
    return (
        f'<div><h3 class="member">{safe(row["member"])}</h3><pre class="wrap">'
        f'<span class="prompt">{safe(sample["prompt"])}</span>{safe(sample["text"])}</pre></div>'
    )


def _learned(results: Results, folder: Path, figures: Path | None) -> str:
    parts = []
    for n, learned in enumerate(learned_of_all(results, folder)):
        parts.append(f'<div class="member"><h3>{safe(learned.member)}</h3>{_paper(learned.member)}')
        parts.append(f'<p class="why">{safe(learned.why)}</p></div>' if learned.why else "</div>")
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in learned.member)
        parts.append('<div class="figures">')
        for name, figure in learned.pictures.items():
            caption = str(figure.get_label())
            kind = next((k for k in PICTURE_TITLES if name.startswith(k)), name)
            rest = name.removeprefix(kind).replace("-", " ")
            title = PICTURE_TITLES.get(kind, kind.replace("-", " ").capitalize())
            title += f",{rest}" if rest else ""
            svg = svg_text(figure)
            if figures is not None:
                save_svg(svg, figures / f"{stem}-{name}.svg")
            full = "full" if figure.get_figwidth() > ROOMY else ""
            parts.append(_figure(title, inline_svg(svg, f"p{n}-{name}", caption), caption, full))
        parts.append("</div>")
    parts.append(_unseen(results))
    return _fold("learned", "What each member learned", "".join(parts))


def _unseen(results: Results) -> str:
    """The commands that draw the insides of members that the page does not show."""
    seen = {row["member"] for row in pictured(results)}
    out = results["config"]["out"]
    runs = {run["member"]: run["folder"] for run in reversed(results["runs"])}
    commands = [
        shlex.join(["everyformer", "show", f"{out}/{runs[row['member']]}", "all"])
        for row in finished(results)
        if row["member"] not in seen
    ]
    if not commands:
        return ""
    inner = f'<pre class="wrap">{safe(chr(10).join(commands))}</pre>'
    return _folded(f"To look into the other {len(commands)} members", inner)


def _paper(member: str) -> str:
    try:
        row = info(member)
    except UnknownNameError:
        return ""
    source = f"{row.title}. {row.authors} {row.year}"
    source += f", arXiv {row.arxiv}" if row.arxiv else ""
    return f"<p>{safe(source)}. {safe(row.cost.formula)}.</p>"


def _data(results: Results) -> str:
    """The data in short; the rest stands below (`_budget`)."""
    data = results["data"]
    rows = [("data", data["name"]), ("read as", data["split"])]
    if data["classes"]:
        rows.append(("classes", ", ".join(data["classes"])))
    return _section("data", "The data", _facts(rows))


def _budget(results: Results) -> str:
    data = results["data"]
    rows = [("task", data["task"])]
    if data["tokenizer"] is not None:
        rows.append(("tokenizer", f"{data['tokenizer']}, {data['vocabulary']:,} tokens"))
    if data["image"] is not None:
        rows.append(("images", " x ".join(map(str, data["image"])) + " (channels, rows, columns)"))
    rows.append(("sequence", f"{data['length']:,} tokens"))
    rows.append(("budget", f"{budget(results['config'])} for each training"))
    rows.append(("fingerprint", data["fingerprint"]))
    rows += [(f"{row['member']} used", _used(row)) for row in finished(results)]
    return _fold("budget", "Data and budget, and what each training used", _facts(rows))


def _used(row: TableRow) -> str:
    """Budget that a member's trainings took, and how fast it was timed before."""
    parts = [f"{row['steps']:,.0f} steps, {count(row['tokens'])} tokens, {row['flops']:.3g} FLOPs"]
    parts[0] += f" in {brief(row['seconds'])} s"
    known = row["calibrated"]
    if known is not None:
        ms = [1000 * seconds for seconds in (known["seconds"], known["cpu_seconds"])]
        rounds = [1000 * seconds for seconds in known["rounds"]]
        parts.append(
            f"timed beforehand at {brief(ms[0])} ms a step, {brief(ms[1])} ms of all threads"
            + (f" ({len(rounds)} rounds up to {brief(max(rounds))} ms)" if len(rounds) > 1 else "")
        )
    if row["load"] is not None:
        parts.append(f"{row['load']:.1f} threads of the machine wanted a core meanwhile")
    return "; ".join(parts)


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
    return _fold("environment", "Environment", _facts(rows))


def _repeat(results: Results) -> str:
    repeated = results["command"]
    if not repeated:
        changed = changes(results["config"], to_dict(CompareConfig()))
        arguments = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        repeated = f"import everyformer as ef\nef.compare({arguments})"
    return _section("repeat", "To repeat it", f'<pre class="wrap">{safe(repeated)}</pre>')


def changes(config: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """The part of nested options that differs from the default."""
    result: dict[str, Any] = {}
    for name, value in config.items():
        usual = default.get(name)
        if isinstance(value, dict) and isinstance(usual, dict):
            if inner := changes(value, usual):
                result[name] = inner
        elif value != usual and name not in ("resume", "overwrite"):
            result[name] = value
    return result


def _config(results: Results) -> str:
    text = to_json(results["config"], indent=2, ensure_ascii=False, default=str)
    return _folded("The full configuration", f"<pre>{safe(text)}</pre>")


def _folded(summary: str, inner: str) -> str:
    return f"<details><summary>{safe(summary)}</summary>{inner}</details>"


def _section(name: str, title: str, inner: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{inner}</section>' if inner else ""


def _fold(name: str, title: str, inner: str) -> str:
    """A section that is opened by who wants it."""
    opening = f'<details id="{name}"><summary>{title}</summary>'
    return f"{opening}{inner}</details>" if inner else ""


def _figure(title: str, svg: str, caption: str, kind: str = "") -> str:
    about = f"<figcaption>{safe(caption)}</figcaption>"
    return f'<figure class="{kind}"><h3>{safe(title)}</h3>{svg}{about}</figure>'


def _facts(rows: Iterable[tuple[str, Any]]) -> str:
    return f"<dl>{''.join(f'<dt>{safe(k)}</dt><dd>{safe(v)}</dd>' for k, v in rows)}</dl>"


def _list(items: list[str]) -> str:
    inner = "".join(f"<li>{_code(safe(item))}</li>" for item in items)
    return f'<ul class="notes">{inner}</ul>' if items else ""


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _code(text: str) -> str:
    """Escaped words with the flags in them, and their numbers, as code."""
    return re.sub(r"--[a-z-]+(?: \d[\d.e+]*\b)?", r"<code>\g<0></code>", text)
