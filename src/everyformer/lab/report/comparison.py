"""`write_report`: one self-contained page about a comparison, for the desk and for the phone.

The template `page.html` escapes everything that comes from data, members or errors; nothing is
loaded from elsewhere. Here stand the plain values that it writes.
"""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from everyformer.core.config import to_dict
from everyformer.core.errors import UnknownNameError
from everyformer.core.wording import join_names
from everyformer.family import info
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.results import Results, TableRow, finished
from everyformer.lab.report.facts import facts, now, remedies
from everyformer.lab.report.figures import draw_all
from everyformer.lab.report.headline import answer
from everyformer.lab.report.learned import learned_of_all, pictured
from everyformer.lab.report.notes import notes
from everyformer.lab.report.selection import baseline, crowded, styles_of
from everyformer.lab.report.table import cells, limits
from everyformer.lab.report.words import brief, budget, count, question, title, visible
from everyformer.lab.show.style import INK, Styles, inline_svg, save_svg, svg_text
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
    """Write ``report.html``, which loads nothing, and ``figures/`` into ``folder``; its path.

    Args:
        results: what `comparison.collect.collect` returns, or results.json.
        complete: False writes what a comparison has while it goes on, in well under a second:
            the table and the curves of losses, without a look into any model.
    """
    path, figures = Path(folder) / "report.html", Path(folder) / "figures"
    styles, package = styles_of(results), files("everyformer.lab.report")
    css, js = (Markup((package / f"page.{kind}").read_text("utf-8")) for kind in ("css", "js"))
    text = rendered(
        "page.html",
        style=css,
        script=js,
        title=title(results),
        question=question(results),
        answer=answer(results),
        facts_first=facts(results),
        now=now(results),
        notes=notes(results),
        doubts=remedies(results),
        next=results["next"],
        data=results["data"],
        budget=budget(results["config"]),
        used={row["member"]: _used(row) for row in finished(results)},
        machine=results["environment"],
        repeat=_repeat(results),
        config=to_json(results["config"], indent=2, ensure_ascii=False, default=str),
        **_table(results, styles),
        **_figures(results, figures, styles, complete),
        **_insides(results, figures, complete),
    )
    write_text(path, text, parents=True)
    return path


def rendered(template: str, package: str = "everyformer.lab.report", **values: Any) -> str:
    """A template of a package with ``values``, of which all but `Markup` is escaped."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
        trim_blocks=True,
    )
    environment.filters |= {"code": _code, "sentence": lambda text: text[:1].upper() + text[1:]}
    return environment.get_template(template).render(values)


def _code(text: str) -> Markup:
    """Words with the flags in them, and their numbers, as code."""
    flags = re.compile(r"--[a-z-]+(?: \d[\d.e+]*\b)?")
    return Markup(flags.sub(r"<code>\g<0></code>", str(escape(visible(text)))))


def _table(results: Results, styles: Styles) -> dict[str, Any]:
    """The table, and what explains it."""
    columns, rows = cells(results)
    base, done = baseline(results), finished(results)
    sentences, crowd = limits(results), crowded(results)
    families = {family: n for n, family in enumerate(styles.families)} if crowd else {}
    shown = [
        {
            "member": row["member"], "leaks": row["leaks"], "cells": own, "group": row["group"],
            "family": families.get(row["group"]),
            "limits": [n for n, of in enumerate(sentences.values(), 1) if row["member"] in of],
        }
        for row, own in rows
    ]  # fmt: skip
    return {
        "crowded": crowd,
        "families": [(family, _spot(colour)) for family, colour in styles.families.items()],
        "colours": {r["member"]: _spot(styles[r["member"]].colour) for r in results["rows"]},
        "titles": [column.title for column in columns],
        "rows": shown,
        "failed": [row for row in results["rows"] if row["status"] == "failed"],
        "interval_of": done[0]["interval_of"] if done else "",
        "timed": any(row["speed_spread"] or row["decode_spread"] for row in done),
        "layers": bool(results["bench"]),
        "bold": any(cell.best for _, own in rows for cell in own),
        "baseline": base["member"] if base is not None else "",
        "limits": [*sentences],
        "waiting": join_names(results["waiting"]),
    }


def _spot(colour: str) -> str:
    """A colour on the page, whose text has its own."""
    return "currentColor" if colour == INK else colour


def _figures(results: Results, folder: Path, styles: Styles, complete: bool) -> dict[str, Any]:
    """The main figures, and the others below a fold."""
    result: dict[str, Any] = {"main": [], "more": []}
    training = results["config"]["training"]
    spent = next((one for one in BUDGETS if training[f"budget_{one}"] is not None), "tokens")
    for n, one in enumerate(draw_all(results, complete=complete)):
        rows = min(3, round(one.figure.get_figheight() / TALL))
        path = folder / f"{one.name}.svg"
        svg = _svg(one.figure, path, f"f{n}", one.caption, styles.titles())
        kind = f"rows{rows}" if rows > 1 else ""
        place = "main" if one.name in (*MAIN, f"loss-{spent}") else "more"
        result[place].append(Shown(one.title, one.caption, svg, kind))
    return result


class Shown(NamedTuple):
    """A figure of the page."""

    title: str
    caption: str
    svg: Markup
    kind: str
    """its class, which says how much room it takes"""


def _svg(figure: Figure, path: Path, *about: Any) -> Markup:
    """A figure on the page, and as a file; ``about`` as `inline_svg` takes it."""
    svg = svg_text(figure)
    save_svg(svg, path)
    return Markup(inline_svg(svg, *about))


def _insides(results: Results, figures: Path, complete: bool) -> dict[str, Any]:
    """Samples and pictures of what members learned, of many the best few alone."""
    rows = finished(results) if complete else []
    best = [row["member"] for row in pictured(results)]
    sampled = [row for row in rows if row["sample"]]
    learned = []
    for n, one in enumerate(learned_of_all(results, figures.parent) if complete else ()):
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in one.member)
        drawn = []
        for name, figure in one.pictures.items():
            caption, path = str(figure.get_label()), figures / f"{stem}-{name}.svg"
            kind = "full" if figure.get_figwidth() > ROOMY else ""
            svg = _svg(figure, path, f"p{n}-{name}", caption)
            drawn.append(Shown(_picture_title(name), caption, svg, kind))
        about = {"member": one.member, "why": one.why, "paper": _paper(one.member)}
        learned.append(about | {"figures": drawn})
    return {
        "sampled": [row for row in sampled if row["member"] in best],
        "sampled_others": [row for row in sampled if row["member"] not in best],
        "learned": learned,
        "unseen": len(rows) > len(best),
    }


def _picture_title(name: str) -> str:
    kind = next((kind for kind in PICTURE_TITLES if name.startswith(kind)), name)
    rest = name.removeprefix(kind).replace("-", " ")
    known = PICTURE_TITLES.get(kind, kind.replace("-", " ").capitalize())
    return f"{known},{rest}" if rest else known


def _paper(member: str) -> str:
    try:
        row = info(member)
    except UnknownNameError:
        return ""
    source = f"{row.title}. {row.authors} {row.year}"
    source += f", arXiv {row.arxiv}" if row.arxiv else ""
    return f"{source}. {row.cost.formula}."


def _used(row: TableRow) -> str:
    """Budget that a member's trainings took, and how fast it was timed before."""
    parts = [f"{row['steps']:,.0f} steps, {count(row['tokens'])} tokens, {row['flops']:.3g} FLOPs"]
    parts[0] += f" in {brief(row['seconds'])} s"
    if (known := row["calibrated"]) is not None:
        ms = [1000 * seconds for seconds in (known["seconds"], known["cpu_seconds"])]
        rounds = [1000 * seconds for seconds in known["rounds"]]
        parts.append(
            f"timed beforehand at {brief(ms[0])} ms a step, {brief(ms[1])} ms of all threads"
            + (f" ({len(rounds)} rounds up to {brief(max(rounds))} ms)" if len(rounds) > 1 else "")
        )
    if row["load"] is not None:
        parts.append(f"{row['load']:.1f} threads of the machine wanted a core meanwhile")
    return "; ".join(parts)


def _repeat(results: Results) -> str:
    """The command that was given, or the call of Python."""
    changed = changes(results["config"], to_dict(CompareConfig()))
    arguments = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    return results["command"] or f"import everyformer as ef\nef.compare({arguments})"


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
