"""A stream's state in a file: a text that is continued later as if it had never stopped.

Of what was written it holds nothing but its newest tokens, so a penalty of repetitions, the fewest
tokens and stop strings count from where it goes on.
"""

from pathlib import Path

import torch
from torch import Tensor

from everyformer.core.errors import CheckpointError, EveryformerError, ShapeError
from everyformer.core.modules import evaluating
from everyformer.core.state import StackState, filled, named_tensors, present_names
from everyformer.generation.sampling import ENDED
from everyformer.models.base import Model
from everyformer.system.files import expanded, file_written_whole
from everyformer.training.storage import read_tensors, write_tensors

NEXT = "next"
"""name of the tokens that the state has not read yet"""
MOST = 1 << 53
"""tokens that a text may have had: more than anybody can make"""


def save_state(path: str | Path, state: StackState, token: Tensor) -> Path:
    """Write ``state`` and the newest tokens (B,), which it has not read, as safetensors; whole.

    Raises:
        CheckpointError: the file cannot be written.
    """
    tensors = {name: value.contiguous() for name, value in named_tensors(state).items()}
    with file_written_whole(expanded(path).absolute()) as temporary:
        write_tensors(temporary, {**tensors, NEXT: token}, sealed=True)
    return expanded(path)


def load_state(path: str | Path, model: Model) -> tuple[StackState, Tensor]:
    """The state and the tokens that `save_state` wrote, for the model that made them.

    Raises:
        CheckpointError: the file is damaged, or the state is one of another model or dtype.
    """
    path = expanded(path)
    tensors = present_names(read_tensors(path, sealed="state of a text"))
    token = tensors.pop(NEXT, None)
    if token is None or "num_tokens" not in tensors:
        raise CheckpointError(f"{path} holds no state of a text: it was written by something else")
    _check_counts(path, tensors, token, model.config.vocabulary)
    try:
        state: StackState = filled(model.init_state(len(token)), tensors)
    except ShapeError as error:
        raise CheckpointError(f"the state in {path} is one of another model: {error}") from error
    device = next(model.parameters()).device
    state = state.to(device)
    _try(path, model, state)
    return state, torch.as_tensor(token, device=device)


def _check_counts(path: Path, tensors: dict[str, Tensor], token: Tensor, vocabulary: int) -> None:
    """Refuse tokens that are none, and texts of fewer tokens than none."""
    if token.dim() != 1 or not len(token) or token.dtype != torch.int64:
        raise CheckpointError(
            f"the state in {path} is damaged: '{NEXT}' must be one int64 token a row, not "
            f"{tuple(token.shape)} {token.dtype}"
        )
    if ((token != ENDED) & ((token < 0) | (token >= vocabulary))).any():
        raise CheckpointError(
            f"the state in {path} is one of another model: its newest tokens are not all below "
            f"this one's {vocabulary:,}"
        )
    for name, counts in tensors.items():
        if name.split(".")[-1] != "num_tokens":
            continue
        whole = counts.dtype == torch.int64 and counts.shape == token.shape
        if not whole or ((counts < 0) | (counts > MOST)).any():
            raise CheckpointError(
                f"the state in {path} is damaged: '{name}' must be a number of tokens for each of "
                f"{len(token)} rows, at most {MOST:,}"
            )


def _try(path: Path, model: Model, state: StackState) -> None:
    """Go on by a token, whatever it is, from a state of sizes that do not fit each other."""
    token = torch.zeros(len(state.num_tokens), 1, dtype=torch.long, device=state.num_tokens.device)
    try:
        with torch.inference_mode(), evaluating(model):
            model(token, state=state.reserve(1))
    except EveryformerError:
        pass  # what it says, it says of the next token too
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the state in {path} is damaged: its tensors do not fit each other "
            f"({str(error).splitlines()[0]})"
        ) from error
