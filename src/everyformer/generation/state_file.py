"""A stream's state in a file: a text that is continued later as if it had never stopped."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from everyformer.core.errors import CheckpointError
from everyformer.core.files import file_written_whole
from everyformer.core.state import StackState, filled, named_tensors
from everyformer.models.base import Model
from everyformer.training.storage import read_tensors, write_tensors

NEXT = "next"
"""name of the tokens that the state has not read yet"""


def save_state(path: str | Path, state: StackState, token: Tensor) -> Path:
    """Write ``state`` and the newest tokens (B,), which it has not read, as safetensors; whole.

    Raises:
        CheckpointError: the file cannot be written.
    """
    tensors = {name: value.contiguous() for name, value in named_tensors(state).items()}
    with file_written_whole(Path(path).absolute()) as temporary:
        write_tensors(temporary, {**tensors, NEXT: token}, sealed=True)
    return Path(path)


def load_state(path: str | Path, model: Model) -> tuple[StackState, Tensor]:
    """The state and the tokens that `save_state` wrote, for the model that made them.

    Raises:
        CheckpointError: the file is damaged, or the state is one of another model or dtype.
    """
    path = Path(path)
    tensors = read_tensors(path)
    token = tensors.pop(NEXT, None)
    if token is None or "seen" not in tensors:
        raise CheckpointError(f"{path} holds no state of a text: it was written by something else")
    begun = model.init_state(len(token))
    expected = named_tensors(begun)
    for name, like in expected.items():
        given = tensors.get(name)
        # a state that grows does so along its middle dimensions alone
        fits = given is not None and (given.dim(), given.shape[0]) == (like.dim(), like.shape[0])
        ends = given is not None and given.shape[2:][-1:] == like.shape[2:][-1:]
        if given is None or not (fits and ends and given.dtype == like.dtype):
            found = "nothing" if given is None else f"{tuple(given.shape)} {given.dtype}"
            raise CheckpointError(
                f"the state in {path} is one of another model: '{name}' is {found}, where this "
                f"model's starts as {tuple(like.shape)} {like.dtype}"
            )
    state: StackState = filled(begun, tensors)
    unread = sorted(set(tensors) - set(named_tensors(state)))
    if unread:
        raise CheckpointError(
            f"the state in {path} is one of another model: it holds '{unread[0]}', which is not in "
            "this one's"
        )
    device = next(model.parameters()).device
    return state.to(device), torch.as_tensor(token, device=device)
