"""`make docs`: a page for each member, from what stands elsewhere, so that nothing is said twice.

A page is made of the row in `family.py`, the text and options of the member's file, a picture of
who reads whom, the laws, and the recorded results of its experiments (``docs/results/*.json``
with figures beside). Genes around the layers, which are no member's subject, have a page for each
of their alternatives.
"""

import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from everyformer.core.config import Choice, docs_of
from everyformer.core.member import Member
from everyformer.core.tasks import LM, TASKS
from everyformer.experiments import defaults
from everyformer.experiments.base import experiments
from everyformer.experiments.study import Experiment
from everyformer.family import list_members
from everyformer.genes import GENES, named_genes
from everyformer.genes.mixers import MIXERS
from everyformer.models.build import create_model
from everyformer.report.heatmaps import draw_offered
from everyformer.report.influence import draw_influence
from everyformer.report.positions import offered
from everyformer.report.style import save_figure
from everyformer.system.files import write_text
from everyformer.system.plain import from_json
from everyformer.verification.verify import LAWS, OF_LAYERS, exemption

BEGIN, END = "<!-- made by `make docs` -->", "<!-- end -->"
"""marks in the README, between which the table of members stands"""
ABILITIES = ("causal", "strictly causal", "bidirectional", "cross", "streaming", "padding")


def write_pages(folder: Path) -> list[Path]:
    """Write ``members/NAME.md`` for every member, ``members/GENE-NAME.md`` for every alternative
    around the layers, and an index; returns the files."""
    recorded, trained = results(folder / "results"), defaults.read(folder / "results")
    texts = {member.name: page(member, recorded, trained) for member in list_members()}
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
    """Gene and name of every alternative that is no member's subject."""
    genes = [gene for gene in GENES.values() if gene.footing]
    return [(gene.name, name) for gene in genes for name in gene.alternatives.names()]


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Recorded experiment results by name."""
    paths = (path for path in sorted(folder.glob("*.json")) if path.stem != defaults.NAME)
    recorded = (from_json(path.read_text(encoding="utf-8")) for path in paths)
    return {result["experiment"]: result for result in recorded}


def page(member: Member, recorded: dict[str, dict[str, Any]], trained: list[dict[str, Any]]) -> str:
    """The page of one member; ``trained`` are the rows of `everyformer.experiments.defaults`."""
    source = f"arXiv [{member.arxiv}](https://arxiv.org/abs/{member.arxiv})" if member.arxiv else ""
    lines = [
        f"# {member.title} (`{member.name}`)",
        "",
        ", ".join(part for part in (f"{member.authors} {member.year}", source) if part) + ".",
        "",
        f"**Claim.** {member.claim[0].upper()}{member.claim[1:]}.",
        "",
    ]
    calls = [f'model = ef.create_model("{member.name}", task="{member.tasks[0]}")']
    if member.is_mixer:
        calls.append(
            f'mixer = ef.create_mixer("{member.name}", width=256, heads=4, max_length=1024)'
        )
    lines += _usage(calls, f"everyformer train {member.name} {TASKS[member.tasks[0]].train}")
    lines += [*_table_row(member), "", *_about(member)]
    for gene, choice in named_genes(member).items():
        lines += _options(gene, GENES[gene].typed(choice))
    lines += ["## Who reads whom", "", f"![{member.name}](../patterns/{member.name}.svg)", ""]
    if drawn_for(member) is None:
        lines += [str(pattern(member).get_label()), ""]
    else:
        command = f"everyformer show {member.name} masks --task {drawn_for(member)}"
        lines += [f"{pattern(member).get_label()} `{command}` draws it.", ""]
    lines += ["## Laws", "", "Checked by `everyformer verify " + member.name + "`:", ""]
    for law, check in LAWS.items():
        reason = exemption(member, law)
        lines.append(f"- *{law}*: " + (f"does not apply ({reason})" if reason else _first(check)))
    lines += ["", "## At its defaults", ""]
    about = "Nats on held-out data after a short training, mean over seeds"
    lines.append(f"{about} ([all members](../results/defaults.md)):")
    lines += ["", *defaults.of_member(member.name, trained)]
    lines += ["", "## Experiments", ""]
    of_member = [e for e in experiments() if member.name in e.members]
    for experiment in of_member:
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
    lines = [
        f"# The {gene} `{name}`",
        "",
        f"{record.question[0].upper()}{record.question[1:]}.{usual}",
        "",
    ]
    lines += _usage([f"model = {call})"], f"everyformer train attention {TASKS[LM].train} {flags}")
    lines += _text(gene, name)
    lines += _options(gene, record.typed(Choice(name)))
    lines += ["## Laws", "", "Drawn for the layers of every member on which these are checked:", ""]
    lines += [f"- *{law}*: {_first(LAWS[law])}" for law in OF_LAYERS]
    lines += ["", "## Members", "", f"Those that have it: {who}."]
    return "\n".join(lines) + "\n"


def drawn_for(member: Member) -> str | None:
    """The task that a member's pattern is drawn for; None: it has none of its own."""
    return MIXERS.get(member.name).drawn_for if member.is_mixer else None


def pattern(member: Member) -> Figure:
    """Pattern of a small model, or what its layers were seen to read."""
    if drawn_for(member) is None:
        return draw_influence(member)
    model = create_model(
        member.name,
        str(drawn_for(member)),
        width=32,
        layers=2,
        heads=4,
        vocabulary=8,
        max_length=64,
    )
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
    lines += ["| member | paper | time | state | tasks |", "|---|---|---|---|---|"]
    for m in list_members():
        tasks = ", ".join(m.tasks)
        lines.append(
            f"| [{m.name}]({m.name}.md) | {m.title}, {m.authors} {m.year} | {m.cost.formula} "
            f"| {m.cost.state} | {tasks} |"
        )
    lines += ["", "# Around the layers", "", "| gene | alternative |", "|---|---|"]
    for gene, name in around_layers():
        about = _first(sys.modules[GENES[gene].alternatives.get(name).__module__])
        lines.append(f"| {gene} | [{name}]({gene}-{name}.md): {about} |")
    columns = "| experiment | seen here | what was found |"
    lines += ["", "# Experiments", "", columns, "|---|---|---|"]
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
        module = TASKS[member.tasks[0]].model.partition(":")[0]
        return _head(importlib.import_module(f"everyformer.models.{module}"))
    return _text(member.gene, str(member.genes[member.gene].name))


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


def _experiment(experiment: Experiment, result: dict[str, Any] | None) -> list[str]:
    lines = [f"### {experiment.name}", "", f"Claim: {experiment.claim}.", ""]
    if result is None:
        data = f" It wants {experiment.data}." if experiment.data else ""
        return [*lines, f"Not recorded yet: `everyformer reproduce {experiment.name}`.{data}", ""]
    verdict = "Seen" if result["holds"] else "**Not seen at this size**"
    lines += [f"{verdict}. {result['sentence']}", ""]
    lines += ["| measured | mean | 95% interval over seeds |", "|---|---|---|"]
    for name, values in result["numbers"].items():
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
    lines.append(f"`{result['command']}`: {', '.join(facts)}.")
    return [*lines, ""]


if __name__ == "__main__":
    for written in write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")):
        print(written)
