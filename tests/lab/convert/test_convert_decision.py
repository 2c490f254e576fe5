"""Decision Transformer of transformers: the same predictions by the same weights, both ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.config import to_dict
from everyformer.core.errors import UnsupportedError
from everyformer.core.mask import Mask
from everyformer.lab.convert import export_checkpoint, import_checkpoint
from helpers import close, draw, shifted
from quiet import transformers

ROWS, STEPS = 3, 6
KEEP = torch.arange(STEPS).expand(ROWS, -1) >= torch.tensor([[0], [2], [5]])
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "two heads, no tanh": {"n_head": 2, "action_tanh": False},
    "narrow, another activation": {"n_inner": 24, "activation_function": "gelu_new"},
}
SHAPE: dict[str, Any] = {
    "state": (4,), "state_mean": (1.0, 0.0, -2.0, 3.0), "state_std": (2.0, 1.0, 0.5, 4.0),
    "actions": 2, "discrete": False, "low": (-2.0, 0.0), "high": (2.0, 1.0), "scale": 8.0,
    "context": STEPS,
}  # fmt: skip


def theirs_of(folder: Path, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"state_dim": 4, "act_dim": 2, "hidden_size": 16, "n_layer": 2, "n_head": 1}
    sizes |= {"max_ep_len": 50, "vocab_size": 1, "attn_implementation": "eager"}
    config = transformers.DecisionTransformerConfig(**sizes | options)
    # float64 from the start, so that it is saved as that
    model = shifted(transformers.DecisionTransformerModel(config).double().eval(), 0.2)
    model.save_pretrained(folder)
    return model


def window() -> dict[str, Tensor]:
    return {
        "states": draw(ROWS, STEPS, 4, seed=1),
        "returns": draw(ROWS, STEPS, seed=2),
        "actions": draw(ROWS, STEPS, 2, seed=3).tanh(),
        "timesteps": torch.arange(STEPS) + torch.tensor([[0], [7], [30]]),
    }


def told(theirs: Any, given: dict[str, Tensor]) -> list[Tensor]:
    """Their states, actions and returns at real steps."""
    with torch.no_grad():
        out = theirs(
            states=given["states"],
            actions=given["actions"],
            returns_to_go=given["returns"][..., None],
            timesteps=given["timesteps"],
            attention_mask=KEEP.long(),
            return_dict=True,
        )
    return [out.state_preds[KEEP], out.action_preds[KEEP], out.return_preds[KEEP][..., 0]]


def said(ours: Any, given: dict[str, Tensor]) -> list[Tensor]:
    rest = {name: t for name, t in given.items() if name != "states"}
    mask = Mask(padding_mask=KEEP)
    with torch.no_grad():
        actions = ours(given["states"], mask=mask, **rest).logits
        read = (given[name] for name in ("states", "returns", "actions", "timesteps"))
        y = ours._read(*read, KEEP)[0][:, :, -1][KEEP]
        return [ours.next_state(y), actions[KEEP], ours.next_return(y)[..., 0]]


@pytest.mark.parametrize("case", CASES)
def test_what_comes_from_transformers_predicts_the_same_and_goes_back_the_same(
    case: str, tmp_path: Path
) -> None:
    theirs = theirs_of(tmp_path / "theirs", **CASES[case])
    given = window()
    ours, report = import_checkpoint(tmp_path / "theirs", episodes={"context": STEPS})
    assert report.left == report.made == []
    assert ours.config.member == "decision-transformer"
    for a, b in zip(said(ours, given), told(theirs, given), strict=True):
        close(a, b)
    # row 0 of the table of positions, which is read at every token, is in the norm's bias
    first = theirs.encoder.wpe.weight[0]
    assert first.abs().max() > 0.1
    close(ours.norm.bias, theirs.embed_ln.bias + first)
    compared = import_checkpoint(tmp_path / "theirs").report.difference
    assert compared is not None
    assert compared < 1e-12
    export_checkpoint(ours, tmp_path / "back")
    again = transformers.DecisionTransformerModel.from_pretrained(
        tmp_path / "back", attn_implementation="eager", dtype=torch.float64
    ).eval()
    assert again.encoder.wpe.weight.abs().max() == 0
    for a, b in zip(told(again, given), told(theirs, given), strict=True):
        close(a, b)
    once_more, _ = import_checkpoint(tmp_path / "back")
    assert once_more.config == ours.config


def test_a_model_of_ours_predicts_there_what_it_does_here(tmp_path: Path) -> None:
    """Theirs reads normalised states, scaled returns, and actions from -1 to 1."""
    torch.manual_seed(0)
    ours: Any = ef.create_model(
        "decision-transformer", "decision", width=16, layers=2, episodes=SHAPE
    )
    ours = shifted(ours).double().eval()
    report = export_checkpoint(ours, tmp_path / "theirs")
    # heads that ours has not are zeros there
    assert {name.split(".")[0] for name in report.made} == {"predict_state", "predict_return"}
    theirs = transformers.DecisionTransformerModel.from_pretrained(
        tmp_path / "theirs", attn_implementation="eager", dtype=torch.float64
    ).eval()
    given = window()
    mean, std = (torch.tensor(SHAPE[f"state_{name}"]) for name in ("mean", "std"))
    middle, half = torch.tensor([0.0, 0.5]), torch.tensor([2.0, 0.5])
    there = given | {
        "states": (given["states"] - mean) / std,
        "returns": given["returns"] / 8,
        "actions": (given["actions"] - middle) / half,
    }
    rest = {name: t for name, t in given.items() if name != "states"}
    with torch.no_grad():
        actions = ours(given["states"], mask=Mask(padding_mask=KEEP), **rest).logits[KEEP]
    close(actions, middle + half * told(theirs, there)[1])
    back, _ = import_checkpoint(tmp_path / "theirs")
    both = [type(one.config).settled(to_dict(one.config)) for one in (back, ours)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "options",
    [
        {"episodes": {"state": (3,), "actions": 4}},
        {"episodes": {**SHAPE, "state": (1, 4, 4), "state_mean": (), "state_std": ()}},
        {"episodes": SHAPE, "decision": {"variant": "atari"}},
        {"episodes": SHAPE, "decision": {"return_to_go": False}},
        {"episodes": SHAPE, "decision": {"body": "mlp"}},
    ],
)
def test_what_theirs_cannot_be_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    model = ef.create_model("decision-transformer", "decision", width=16, layers=1, **options)
    with pytest.raises(UnsupportedError, match="all numbers, in the variant 'gym': this model"):
        export_checkpoint(model, tmp_path / "theirs")
