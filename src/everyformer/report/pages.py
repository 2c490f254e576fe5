"""`make docs`: a page for each member, from what stands elsewhere, so that nothing is said twice.

A page is made of the row in `family.py`, the text and options of the member's file, of sparse
patterns a picture, the laws, and the recorded results of its experiments (``docs/results/*.json``
with figures beside).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from everyformer.core.config import Choice, docs_of
from everyformer.core.files import write_text
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS
from everyformer.experiments import defaults
from everyformer.experiments.base import FILES, Experiment
from everyformer.family import list_members
from everyformer.genes import GENES, named_genes
from everyformer.models.build import create_model
from everyformer.report.heatmaps import draw_offered
from everyformer.report.places import offered
from everyformer.report.style import save_figure
from everyformer.verification.verify import LAWS, exemption

PATTERNS = {
    "sparse-transformer": "lm", "image-transformer": "lm", "blockwise": "mlm", "etc": "mlm",
    "longformer": "mlm", "bigbird": "mlm",
}  # fmt: skip
"""members whose pattern is drawn, and the task that it is drawn for"""
ABILITIES = ("causal", "strictly causal", "bidirectional", "cross", "streaming", "padding")


def write_pages(folder: Path) -> list[Path]:
    """Write ``members/NAME.md`` for every member and an index; returns the files."""
    place = folder / "members"
    place.mkdir(parents=True, exist_ok=True)
    recorded, trained = results(folder / "results"), defaults.read(folder / "results")
    written = []
    for member in list_members():
        path = place / f"{member.name}.md"
        write_text(path, page(member, recorded, trained))
        written.append(path)
    for name in PATTERNS:
        written.append(save_figure(pattern(name), folder / "patterns" / f"{name}.svg"))
    index = place / "README.md"
    write_text(index, overview(recorded))
    return [*written, index]


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Recorded experiment results by name."""
    paths = (path for path in sorted(folder.glob("*.json")) if path.stem != defaults.NAME)
    found = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    return {result["experiment"]: result for result in found}


def experiments() -> list[Experiment]:
    """All experiments, in the order of the files."""
    every: list[Experiment] = []
    for file in FILES:
        every += importlib.import_module(f"everyformer.experiments.{file}").EXPERIMENTS
    return every


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
        "```python",
        "import everyformer as ef",
        "",
        f'model = ef.create_model("{member.name}", task="{member.tasks[0]}")',
    ]
    if member.is_mixer:
        lines.append(
            f'mixer = ef.create_mixer("{member.name}", width=256, heads=4, max_length=1024)'
        )
    command = f"everyformer train {member.name} {TASKS[member.tasks[0]].train}"
    lines += ["```", "", "```sh", command, "```"]
    lines += ["", *_table_row(member), "", "## What it is", "", _text(member), ""]
    for gene, choice in named_genes(member).items():
        lines += _options(gene, GENES[gene].typed(choice))
    if member.name in PATTERNS:
        lines += ["## Who reads whom", "", f"![{member.name}](../patterns/{member.name}.svg)", ""]
        shown = f"everyformer show {member.name} masks --task {PATTERNS[member.name]}"
        lines += [f"{pattern(member.name).get_label()} `{shown}` draws it.", ""]
    lines += ["## Laws", "", "Checked by `everyformer verify " + member.name + "`:", ""]
    for law, check in LAWS.items():
        reason = exemption(member, law)
        says = (inspect.getdoc(check) or "").split("\n")[0]
        lines.append(f"- *{law}*: " + (f"does not apply ({reason})" if reason else says))
    lines += ["", "## At its defaults", ""]
    told = "Nats on held-out data after a short training, mean over seeds"
    lines.append(f"{told} ([all members](../results/defaults.md)):")
    lines += ["", *defaults.of_member(member.name, trained)]
    lines += ["", "## Experiments", ""]
    own = [e for e in experiments() if member.name in e.members]
    for experiment in own:
        lines += _experiment(experiment, recorded.get(experiment.name))
    return "\n".join(lines).rstrip() + "\n"


def pattern(name: str) -> Figure:
    """Who reads whom in a small model of one of `PATTERNS`."""
    model = create_model(
        name, PATTERNS[name], width=32, layers=2, heads=4, vocabulary=8, max_length=64
    )
    return draw_offered(offered(model, None)["masks"]())


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
    lines += [
        "",
        "# Experiments",
        "",
        "| experiment | seen here | what was found |",
        "|---|---|---|",
    ]
    for experiment in experiments():
        result = recorded.get(experiment.name)
        seen = "not recorded" if result is None else "yes" if result["holds"] else "**no**"
        found = experiment.claim if result is None else result["sentence"]
        lines.append(f"| {experiment.name} | {seen} | {found} |")
    return "\n".join(lines) + "\n"


def _table_row(member: Member) -> list[str]:
    lines = ["| | |", "|---|---|"]
    lines += [f"| time | {member.cost.formula} |", f"| state | {member.cost.state} |"]
    lines.append(f"| tasks | {', '.join(member.tasks)} |")
    for ability in ABILITIES:
        value = getattr(member, ability.replace(" ", "_"))
        lines.append(f"| {ability} | {'yes' if value is True else f'no: {value}'} |")
    return lines


def _text(member: Member) -> str:
    """The text at the head of the file that makes the member what it is, as written there."""
    mixer, position, memory = (member.genes[gene] for gene in ("mixer", "position", "memory"))
    special = mixer.name == "attention" and position.name not in (None, "sinusoidal")
    special = special or member.name == "sinusoidal"
    gene = "memory" if memory.name is not None else "position" if special else "mixer"
    cls = GENES[gene].alternatives.get(str(member.genes[gene].name))
    text = inspect.getdoc(sys.modules[cls.__module__]) or ""
    return f"```text\n{text}\n```"


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
