"""Answers that are right: their measures, the model of one vector, and what `list --can` makes."""

import json

import pytest
import torch

import everyformer as ef
from everyformer.cli import main
from everyformer.core.outputs import ModelOutput
from everyformer.core.tasks import TASKS
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.lab.compare import collect
from everyformer.lab.compare.plan import Job
from everyformer.lab.suites import abilities


def dataset_of(source, *options, task=None):
    return load_dataset(DataConfig(source=source, options=options), task)


class Guesser(torch.nn.Module):
    """Answers each place by a rule of its tokens, in logits."""

    def __init__(self, rule, vocabulary):
        super().__init__()
        self.rule, self.vocabulary = rule, vocabulary

    def forward(self, inputs, *, targets=None, **more):
        guesses = self.rule(inputs)
        logits = torch.nn.functional.one_hot(guesses, self.vocabulary).float()
        return ModelOutput(logits, None, {}, None)


def measured(rule, dataset):
    scores = TASKS["lm"].scores(Guesser(rule, dataset.vocabulary), dataset)
    for batch in dataset.validation_batches(100):
        scores.add(Guesser(rule, dataset.vocabulary)(batch.inputs), batch)
    return scores.summary(), next(iter(dataset.validation_batches(1024)))


def test_answers_are_counted_by_token_class_and_row():
    dataset = dataset_of("mqar", "length=32", "symbols=32", "pairs=3")
    found, batch = measured(lambda x: (x * 7 + 3) % 32, dataset)
    guesses, asked = (batch.inputs * 7 + 3) % 32, batch.targets != -100
    right = (guesses == batch.targets) & asked
    classes = batch.targets[asked].unique().tolist()
    shares = [right[batch.targets == c].float().mean().item() for c in classes]
    assert found["answers"] == found["accuracy"] == right.sum().item() / asked.sum().item()
    assert 0 < found["answers"] < 1
    assert found["macro_answers"] == pytest.approx(sum(shares) / len(shares), rel=1e-6)
    assert found["macro_answers"] != pytest.approx(found["answers"], rel=1e-6)
    assert found["whole_rows"] == (right == asked).all(1).double().mean().item()
    assert found["shortcut_answers"] == pytest.approx(1 / 3)


def test_a_row_is_whole_if_all_its_answers_are_right():
    dataset = dataset_of("induction", "length=16")
    first = lambda x: x.gather(1, (x == 19).long().argmax(1, keepdim=True) + 1).expand_as(x)  # noqa: E731
    found, _ = measured(first, dataset)
    assert found["answers"] == found["whole_rows"] == found["macro_answers"] == 1.0


def test_texts_have_no_answers():
    dataset = dataset_of("copy")
    assert dataset.shortcut is None
    assert dataset.tested is None
    found, _ = measured(lambda x: x, dataset)
    assert not {"answers", "macro_answers", "whole_rows"} & {*found}


def test_the_third_stream_is_another_and_has_no_fourth():
    dataset = dataset_of("mqar")
    test = dataset.tested
    assert test.tested is None
    assert test.shortcut == dataset.shortcut
    one, other = (next(iter(d.validation_batches(64))).inputs for d in (dataset, test))
    assert not torch.equal(one, other)
    said = dataset_of("mqar", "held_out=test")
    assert torch.equal(next(iter(said.validation_batches(64))).inputs, other)


@pytest.mark.parametrize("member", ["attention", "gmlp", "linear"])
def test_all_that_is_known_of_a_compressed_row_is_one_vector(member):
    sizes = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 8, "max_length": 12}
    model = ef.create_model(member, "compress", **sizes).double().eval()
    seen = []
    model.stack.register_forward_hook(lambda m, args, out: seen.append(out.y))
    x = torch.randint(8, (1, 12))
    weights = torch.eye(8, dtype=torch.float64)[x].requires_grad_()

    def logits(vectors):
        model.embed = lambda table, inputs, *more: vectors @ model.embedding.weight
        return model(x).logits

    y = logits(weights)
    assert y.shape == (1, 12, 8)
    rows = torch.autograd.functional.jacobian(logits, weights.detach()).reshape(96, 96)
    # through one vector of 16 channels, whose mean a norm takes away
    assert 2 < torch.linalg.matrix_rank(rows, rtol=1e-9) <= 16
    assert seen[0].shape == (1, 12, 16)


def test_compression_is_data_of_its_own_task(capsys):
    assert dataset_of("mad:compression").task == "compress"
    assert main(["train", "attention", "--data", "mad:compression", "--task", "lm"]) == 2
    assert "is of the task compress, not lm" in capsys.readouterr().err


def test_comparisons_are_ranked_by_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "compare attention linear --data mqar --width 16 --layers 1 --heads 2 --steps 1"
    assert main([*words.split(), "--lengths", "--decode", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "answers"
    row = found["rows"][0]
    assert row["baseline"] == pytest.approx(0.25)
    assert not row["beats_baseline"]
    assert found["runs"][0]["chosen_by"] != found["runs"][0]["evaluation"]["loss"]


def test_trained_answers_alone_are_those_that_are_scored():
    for name in ("mad:recall", "mad:noisy", "mad:fuzzy", "induction", "needle"):
        every, alone = (dataset_of(name, f"trained={t}").train_batch(0, 64, 0) for t in
                        ("all", "answers"))  # fmt: skip
        assert torch.equal(every.inputs, alone.inputs)
        asked = alone.targets != -100
        assert torch.equal(alone.targets[asked], every.targets[asked])
        assert asked.sum() < every.targets.numel() / 2
        held = next(iter(dataset_of(name).validation_batches(64))).targets != -100
        assert abs(asked.sum() / held.sum() - 1) < 0.1


def test_a_model_without_guesses_is_ranked_by_what_all_have():
    """kNN-LM and SPALM give losses of tokens that are none of their logits."""
    evaluations = [{"loss": 1.0, "answers": 0.5}, {"loss": 2.0}]
    jobs = [Job(name, 0, 1e-3, name, None) for name in ("attention", "spalm")]
    finished = [
        (job, {"status": "done", "evaluation": found})
        for job, found in zip(jobs, evaluations, strict=True)
    ]
    dataset = dataset_of("mqar")
    assert collect.metric_of(finished, dataset) == "loss"
    assert collect.metric_of(finished[:1], dataset) == "answers"
    assert collect.metric_of([], dataset) == "loss"


def test_members_are_listed_by_what_was_measured(monkeypatch, capsys):
    # most of them, not half
    known = {"attention": {"recall": (3, 5)}, "linear": {"recall": (2, 4)}}
    monkeypatch.setattr(abilities, "measured", lambda: known)
    assert main(["list", "--can", "recall", "--json"]) == 0
    assert [m["name"] for m in json.loads(capsys.readouterr().out)] == ["attention"]
    assert main(["list", "--can", "recall,constant-memory", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == []
    assert "--can constant-memory leaves no member of those that --can recall (1) left" in said.err
    assert main(["list", "--can", "stream", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) > 30
    assert main(["list", "--can", "recal"]) == 2
    assert "unknown skill 'recal'; did you mean 'recall'" in capsys.readouterr().err
