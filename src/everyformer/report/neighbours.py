"""`write_neighbours`: a page that colours a text by what a datastore did to each of its tokens.

One file that loads nothing. A token leads to its neighbours: where they stand, what followed them
there and how much they weigh. Everything that comes from texts is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from everyformer.report.words import safe
from everyformer.system.files import write_text

if TYPE_CHECKING:
    from everyformer.datastores.neighbours import Explained, Neighbour

FULL = 2.0
"""nats from which on a token has the full colour"""
DEEPEST = 0.65
"""how much of the full colour covers the paper: text on it stays readable"""
MORE, LESS = "0, 114, 178", "213, 94, 0"
"""of tokens that the store made more, and less likely"""
READ = 48
"""tokens before a chosen one that are shown with its neighbours"""
ENDS = 5
"""tokens that are named as those that gained and lost most"""


def write_neighbours(
    tokens: Sequence[Explained], first: str, facts: Sequence[str], path: Path
) -> Path:
    """Write the page to ``path``.

    Args:
        first: the text of the first token, which nothing predicts.
        facts: what is read and how, a few words each.
    """
    package = files("everyformer.report")
    alone = -sum(token.of_model for token in tokens) / len(tokens)
    mixed = -sum(token.mixed for token in tokens) / len(tokens)
    more = sum(token.gain > 0 for token in tokens)
    page = Template((package / "neighbours.html").read_text(encoding="utf-8")).substitute(
        title=safe(f"everyformer: neighbours in {facts[0]}"),
        style=(package / "page.css").read_text(encoding="utf-8"),
        chosen="\n".join(
            f'body:has(#n{n}:target) [href="#n{n}"] {{ outline: 2px solid var(--mark); }}'
            for n in range(1, len(tokens) + 1)
        ),
        kicker=safe(" · ".join(facts)),
        headline="What did the datastore do to each token?",
        answer=safe(
            f"The loss of this text is {mixed:.4f} nats a token with the store and {alone:.4f} "
            f"without: {more:,} of {len(tokens):,} tokens became more likely. Choose a token to "
            "see its neighbours."
        ),
        key=_key(),
        tokens=f"<span>{_text(first)}</span>"
        + "".join(_token(number, token) for number, token in enumerate(tokens, 1)),
        ends=_ends(tokens),
        sections="\n".join(_section(tokens, first, n) for n in range(len(tokens))),
    )
    write_text(path, page, parents=True)
    return path


def _token(number: int, token: Explained) -> str:
    title = f"{math.exp(token.of_model):.3f} without the store, {math.exp(token.mixed):.3f} with it"
    return (
        f'<a href="#n{number}" title="{title}" style="{_colour(token.gain)}">'
        f"{_text(token.text)}</a>"
    )


def _colour(gain: float) -> str:
    """The background of a token that gained so many nats."""
    depth = DEEPEST * min(1.0, abs(gain) / FULL)
    return f"background: rgba({MORE if gain > 0 else LESS}, {depth:.2f})" if depth > 0.005 else ""


def _text(text: str) -> str:
    """A token's text; the end of a line is seen, and one without text too."""
    return safe(text).replace("\n", '<span class="end">⏎</span>\n') or "▯"


def _key() -> str:
    steps = [-FULL, -FULL / 2, 0.0, FULL / 2, FULL]
    words = [f"{FULL:g} nats or more less likely", f"{FULL / 2:g}", "as before", f"{FULL / 2:g}"]
    words.append(f"{FULL:g} nats or more likelier")
    return "".join(
        f'<span><span style="{_colour(step)}">a</span> {word}</span>'
        for step, word in zip(steps, words, strict=True)
    )


def _ends(tokens: Sequence[Explained]) -> str:
    """The tokens that gained most and those that lost most."""
    ordered = sorted(enumerate(tokens, 1), key=lambda pair: pair[1].gain)
    lists = (
        ("Gained most", [pair for pair in ordered[: -ENDS - 1 : -1] if pair[1].gain > 0]),
        ("Lost most", [pair for pair in ordered[:ENDS] if pair[1].gain < 0]),
    )
    parts = []
    for title, those in lists:
        items = "".join(
            f'<li><a href="#n{number}">token {number:,}</a>, <code>{_quoted(token.text)}</code>: '
            f"{math.exp(token.of_model):.2g} to {math.exp(token.mixed):.2g}</li>"
            for number, token in those
        )
        parts.append(f"<div><h3>{title}</h3><ol>{items or '<li>none</li>'}</ol></div>")
    return f'<div class="ends">{"".join(parts)}</div>'


def _section(tokens: Sequence[Explained], first: str, place: int) -> str:
    """The neighbours of a token, hidden until it is chosen."""
    token, number, count = tokens[place], place + 1, len(tokens)
    read = [first, *(other.text for other in tokens[:place])]
    steps = []
    if number > 1:
        steps.append(f'<a href="#n{number - 1}">before</a>')
    if number < count:
        steps.append(f'<a href="#n{number + 1}">next</a>')
    steps.append('<a href="#text">close</a>')
    numbers = (
        f"p = {math.exp(token.mixed):.4f}: of the model {math.exp(token.of_model):.4f}, of the "
        f"neighbours {math.exp(token.of_neighbours):.4f}"
    )
    return (
        f'<section class="one" id="n{number}"><nav>{" · ".join(steps)}</nav>'
        f"<h2>token {number:,}, <code>{_quoted(token.text)}</code>: {numbers}</h2>"
        f'<p class="read">{_inline("".join(read[-READ:]))}'
        f"{_marked(token.text, True)}</p>"
        f"{_table(token.neighbours)}</section>"
    )


def _table(neighbours: Sequence[Neighbour]) -> str:
    if not neighbours:
        return "<p>The search found no neighbour.</p>"
    rows = "".join(
        f'<tr><td class="source">{safe(result.document)}<small>token {result.offset:,}</small></td>'
        f'<td class="text">{_inline(result.before)}'
        f"{_marked(result.token, result.right)}"
        f"{_inline(result.after)}</td>"
        f"<td>{result.distance:.4g}</td><td>{result.weight:.4f}</td></tr>"
        for result in neighbours
    )
    return (
        '<div class="scroll"><table><thead><tr><th>source</th><th class="text">what was read '
        "there, and what followed</th><th>distance</th><th>weight</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _inline(text: str) -> str:
    """Text in one line; the ends of its lines are seen."""
    return safe(text).replace("\n", '<span class="end">⏎</span>')


def _marked(text: str, right: bool) -> str:
    """A token that followed, by whether it is the one that came."""
    return f"<mark{' class=right' if right else ''}>{_inline(text) or '▯'}</mark>"


def _quoted(text: str) -> str:
    return safe(repr(text)[1:-1]) or "▯"
