"""`make docs`: a page for each member, made of texts that are elsewhere.

A page is made of the row in `family.py`, the text and options of the member's file, a picture of
who reads whom, the laws that do not apply, its row on the recorded board of probes
(``docs/board/mini/board.json``), and the recorded results of its experiments
(``docs/results/*.json`` with figures beside). Text and options of an alternative stand on the page
of the member whose subject it is, or on one of its own; all others link there.
"""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from everyformer.checks.verify import LAWS, exemption
from everyformer.core.config import Choice
from everyformer.core.explained import docs_of
from everyformer.core.member import Member
from everyformer.core.tasks import LM, TASKS
from everyformer.family import list_members
from everyformer.genes import GENES, named_genes
from everyformer.genes.mixers import MIXERS
from everyformer.lab.experiments.base import experiments
from everyformer.lab.experiments.study import Experiment
from everyformer.lab.report.influence import draw_influence
from everyformer.lab.show.heatmaps import draw_offered
from everyformer.lab.show.positions import offered
from everyformer.lab.show.style import save_figure
from everyformer.lab.suites.board import Board, cell_of, read_board
from everyformer.lab.suites.page import words_of
from everyformer.models import decision
from everyformer.models.build import create_model
from everyformer.system.files import write_text
from everyformer.system.plain import from_json

BEGIN, END = "<!-- made by `make docs` -->", "<!-- end -->"
"""marks in the README, between which the table of members stands"""
LAWS_LINK = "All [laws](../trust.md#the-laws-of-members)"
ABILITIES = ("causal", "strictly causal", "bidirectional", "cross", "streaming", "padding")


def write_pages(folder: Path) -> list[Path]:
    """Write ``members/NAME.md`` for every member, ``members/GENE-NAME.md`` for every alternative
    around the layers, and an index; returns the files."""
    recorded, measured = results(folder / "results"), board(folder)
    texts = {member.name: page(member, recorded, measured) for member in list_members()}
    texts |= {f"{gene}-{name}": gene_page(gene, name) for gene, name in around_layers()}
    texts["README"] = overview(recorded)
    readme = folder.parent / "README.md"
    if readme.exists():
        write_text(readme, with_groups(readme.read_text(encoding="utf-8")))
    written = []
    for name, text in texts.items():
        written.append(folder / "members" / f"{name}.md")
        write_text(written[-1], text, parents=True)
    for member in list_members():
        written.append(save_figure(pattern(member), folder / "patterns" / f"{member.name}.svg"))
    return written


def around_layers() -> list[tuple[str, str]]:
    """Gene and name of every alternative around the layers that is no member's subject."""
    genes = [gene for gene in GENES.values() if gene.training_detail]
    both = [(gene.name, name) for gene in genes for name in gene.alternatives.names()]
    return [(gene, name) for gene, name in both if home(gene, name) == f"{gene}-{name}"]


def home(gene: str, name: str) -> str:
    """The page with the text and options of an alternative."""
    subject = (m.name for m in list_members() if m.gene == gene and m.genes[gene].name == name)
    return next(subject, f"{gene}-{name}")


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Recorded experiment results by name."""
    paths = sorted(folder.glob("*.json"))
    recorded = (from_json(path.read_text(encoding="utf-8")) for path in paths)
    return {result["experiment"]: result for result in recorded}


def board(folder: Path) -> Board | None:
    """The recorded board of probes, where there is one."""
    path = folder / "board" / "mini" / "board.json"
    return read_board(path) if path.exists() else None


def page(member: Member, recorded: dict[str, dict[str, Any]], measured: Board | None = None) -> str:
    """The page of one member."""
    source = f"arXiv [{member.arxiv}](https://arxiv.org/abs/{member.arxiv})" if member.arxiv else ""
    paper = ", ".join(part for part in (f"{member.authors} {member.year}", source) if part)
    lines = [f"# {member.title} (`{member.name}`)", "", f"{paper}.", ""]
    lines += [f"**Claim.** {member.claim[0].upper()}{member.claim[1:]}.", ""]
    calls = [f'model = ef.create_model("{member.name}", task="{member.tasks[0]}")']
    sizes = "width=256, heads=4, max_length=1024"
    calls += [f'mixer = ef.create_mixer("{member.name}", {sizes})'] if member.is_mixer else []
    lines += _usage(calls, f"everyformer train {member.name} {member.task.train}")
    lines += [*_table_row(member), "", *_about(member), *_genes(member)]
    lines += ["## Who reads whom", "", f"![{member.name}](../patterns/{member.name}.svg)", ""]
    shown = f" `everyformer show {member.name} masks --task {drawn_for(member)}` draws it."
    lines += [f"{pattern(member).get_label()}{shown if drawn_for(member) else ''}", ""]
    reasons = {law: reason for law in LAWS if (reason := exemption(member, law))}
    lines += ["## Laws", "", f"{LAWS_LINK}, by `everyformer verify {member.name}`"]
    lines[-1] += ", but for:" if reasons else "."
    lines += ["", *(f"- *{law}*: {reason}" for law, reason in reasons.items())]
    lines += ["", *_on_probes(member.name, measured), "## Experiments", ""]
    for experiment in experiments():
        if member.name in experiment.members:
            lines += _experiment(experiment, recorded.get(experiment.name))
    return "\n".join(lines).rstrip() + "\n"


def gene_page(gene: str, name: str) -> str:
    """The page of one alternative of a gene around the layers."""
    record, cls = GENES[gene], GENES[gene].alternatives.get(name)
    flags, call = f"--{gene} {name}", f'ef.create_model("attention", {gene}="{name}"'
    for option, value in (cls.trials.variants or ({},))[0].items():
        flags += f" --{gene}.{option} {value}"
        call += f", {option}={value!r}".replace("'", '"')
    usual = " It is the default." if record.default == name else f" Default: `{record.default}`."
    members = [m.name for m in list_members() if m.genes[gene].name == name]
    who = ", ".join(f"[{member}]({member}.md)" for member in members) or "none"
    question = f"{record.question[0].upper()}{record.question[1:]}.{usual}"
    lines = [f"# The {gene} `{name}`", "", question, ""]
    lines += _usage([f"model = {call})"], f"everyformer train attention {TASKS[LM].train} {flags}")
    lines += [*_text(gene, name), *_options(gene, record.typed(Choice(name)))]
    lines += [
        "## Laws",
        "",
        f"{LAWS_LINK}: *conditions* tries it around the layers of every member.",
    ]
    lines += ["", "## Members", "", f"Those that have it: {who}."]
    return "\n".join(lines) + "\n"


def drawn_for(member: Member) -> str | None:
    """The task that a member's pattern is drawn for; None: it has none of its own."""
    return MIXERS.get(member.name).drawn_for if member.is_mixer else None


def pattern(member: Member) -> Figure:
    """Pattern of a small model, or what its layers were seen to read."""
    if drawn_for(member) is None:
        return draw_influence(member)
    sizes = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 8, "max_length": 64}
    model = create_model(member.name, str(drawn_for(member)), **sizes)
    return draw_offered(offered(model, None)["masks"]())


def groups() -> str:
    """Members by group, a line each, for the README."""
    lines = ["| group | members |", "|---|---|"]
    named: dict[str, list[str]] = {}
    for member in list_members():
        named.setdefault(member.group, []).append(f"[{member.name}](docs/members/{member.name}.md)")
    return "\n".join((*lines, *(f"| {g} | {', '.join(names)} |" for g, names in named.items())))


def with_groups(readme: str) -> str:
    """``readme`` with the table of `groups` between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{groups()}\n{END}{after}"


def overview(recorded: dict[str, dict[str, Any]]) -> str:
    """The index: one line a member, one line an experiment."""
    lines = ["# Members", "", "Made by `make docs` from `family.py` and the members' files.", ""]
    lines += ["| member | paper | time | state |", "|---|---|---|---|"]
    for m in list_members():
        paper, cost = f"{m.title}, {m.authors} {m.year}", f"{m.cost.formula} | {m.cost.state}"
        lines.append(f"| [{m.name}]({m.name}.md) | {paper} | {cost} |")
    lines += ["", "## Around the layers", "", "| gene | alternative |", "|---|---|"]
    for gene, name in around_layers():
        about = _first(sys.modules[GENES[gene].alternatives.get(name).__module__])
        lines.append(f"| {gene} | [{name}]({gene}-{name}.md): {about} |")
    columns = "| experiment | seen here | what was found |"
    lines += ["", "## Experiments", "", columns, "|---|---|---|"]
    for experiment in experiments():
        result = recorded.get(experiment.name)
        seen = "not recorded" if result is None else "yes" if result["holds"] else "**no**"
        sentence = experiment.claim if result is None else result["sentence"]
        lines.append(f"| {experiment.name} | {seen} | {sentence} |")
    return "\n".join(lines) + "\n"


def _table_row(member: Member) -> list[str]:
    lines = ["| | |", "|---|---|"]
    lines += [f"| time | {member.cost.formula} |", f"| state | {member.cost.state} |"]
    lines.append(f"| tasks | {', '.join(member.tasks)} |")
    for ability in ABILITIES:
        value = getattr(member, ability.replace(" ", "_"))
        lines.append(f"| {ability} | {'yes' if value is True else f'no: {value}'} |")
    return lines


def _usage(calls: list[str], command: str) -> list[str]:
    lines = ["```python", "import everyformer as ef", "", *calls, "```"]
    return [*lines, "", "```sh", command, "```", ""]


def _about(member: Member) -> list[str]:
    """The text of what makes a member what it is: a gene's alternative, or the model that acts."""
    if all(TASKS[task].acts for task in member.tasks):
        return _head(decision)
    own = str(member.genes[member.gene].name)
    return _text(member.gene, own) if home(member.gene, own) == member.name else []


def _genes(member: Member) -> list[str]:
    """Genes that a member is made of, with links, and the options of what is its own."""
    lines = ["## Genes", "", "| gene | choice | options set |", "|---|---|---|"]
    own: list[str] = []
    for gene, choice in named_genes(member).items():
        if choice.name is None:
            lines.append(f"| {gene} | none |  |")
            continue
        page = home(gene, choice.name)
        typed, usual = GENES[gene].typed(choice), GENES[gene].typed(Choice(choice.name))
        names = [f.name for f in dataclasses.fields(typed.options)]
        changed = [f"`{n}={typed.get(n)}`" for n in names if typed.get(n) != usual.get(n)]
        lines.append(f"| {gene} | [{choice.name}]({page}.md) | {', '.join(changed)} |")
        own += _options(gene, typed) if page == member.name else []
    return [*lines, "", *own]


def _text(gene: str, name: str) -> list[str]:
    """The text at the head of an alternative's file, as written there."""
    return _head(sys.modules[GENES[gene].alternatives.get(name).__module__])


def _head(module: Any) -> list[str]:
    text = inspect.getdoc(module) or ""
    return ["## What it is", "", f"```text\n{text}\n```", ""]


def _first(what: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(what) or "").split("\n")[0]


def _options(gene: str, choice: Choice) -> list[str]:
    docs = docs_of(choice.options)
    fields = dataclasses.fields(choice.options)
    if not fields:
        return []
    lines = [f"## Options of the {gene} `{choice.name}`", ""]
    lines += ["| option | default | meaning |", "|---|---|---|"]
    for f in fields:
        value = choice.get(f.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = ", ".join(i.name for i in dataclasses.fields(value))
        meaning = docs.get(f.name, "").replace("|", "\\|")
        lines.append(f"| `{f.name}` | `{value}` | {meaning} |")
    return [*lines, ""]


def _on_probes(member: str, measured: Board | None) -> list[str]:
    """The row of a member on the board of probes; nothing of one that is not on it."""
    if measured is None or member not in measured["members"]:
        return []
    about = "Right answers on [probes](../probes.md), and what the tests support"
    lines = ["## What it can do", "", f"{about} ([all members](../board/mini/board.md)):", ""]
    lines += ["| probe | right | 95% over seeds | shortcut | |", "|---|---|---|---|---|"]
    for probe, column in measured["probes"].items():
        cell = cell_of(measured, probe, member)
        right = "-" if cell["accuracy"] is None else f"{cell['accuracy']:.1%}"
        span = "-" if cell["interval"] is None else "{:.1%} to {:.1%}".format(*cell["interval"])
        level, words = column["shortcut"], words_of(measured, cell)
        lines.append(f"| {probe} | {right} | {span} | {level:.1%} | {words} |")
    return [*lines, ""]


def _experiment(experiment: Experiment, result: dict[str, Any] | None) -> list[str]:
    lines = [f"### {experiment.name}", "", f"Claim: {experiment.claim}.", ""]
    if result is None:
        data = f" It wants {experiment.data}." if experiment.data else ""
        return [*lines, f"Not recorded yet: `everyformer reproduce {experiment.name}`.{data}", ""]
    verdict = "Seen" if result["holds"] else "**Not seen at this size**"
    lines += [f"{verdict}. {result['sentence']}", ""]
    lines += ["| measured | mean | 95% interval over seeds |", "|---|---|---|"]
    for name, values in (result["numbers"] | result.get("beside", {})).items():
        low, high = values["interval"] or (None, None)
        span = "-" if low is None else f"{low:.4g} to {high:.4g}"
        lines.append(f"| {name} | {values['mean']:.4g} | {span} |")
    lines += ["", *(f"![{n}](../results/{n})" for n in result["figures"]), ""]
    used = result["environment"]
    facts = [f"{result['seeds']} seeds", f"{result['minutes']} minutes"]
    if "torch_threads" in used:
        facts[-1] += f" on {used['torch_threads']} of {used['cores']} cores"
    if torch := used.get("packages", {}).get("torch"):
        facts.append(f"torch {torch}")
    return [*lines, f"`{result['command']}`: {', '.join(facts)}.", ""]


if __name__ == "__main__":
    for written in write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")):
        print(written)
