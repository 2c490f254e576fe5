"""Tensors that a model holds beside what it saves."""

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path


def unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that a model holds and saves nowhere: attributes, also in lists and of modules in
    these, and buffers that are not persistent."""
    state, found = model.state_dict(keep_vars=True), dict[str, Tensor]()
    saved = {id(tensor) for tensor in state.values()}
    for prefix, module in model.named_modules():
        held = {name: value for name, value in vars(module).items() if name != "_modules"}
        for path, leaf in tree_flatten_with_path(held)[0]:
            keys = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
            name = ".".join(filter(None, [prefix, *keys[keys[0] in ("_parameters", "_buffers") :]]))
            inner = (
                {**dict(leaf.named_parameters(name)), **dict(leaf.named_buffers(name))}
                if isinstance(leaf, nn.Module)
                else {name: leaf}
            )
            tensors = {k: t for k, t in inner.items() if isinstance(t, Tensor) and t.numel()}
            found |= {k: t for k, t in tensors.items() if id(t) not in saved and k not in state}
    return found


def stray(model: nn.Module) -> dict[str, Tensor]:
    """Those of numbers that are no buffers either, which ``model.to(dtype)`` leaves as they are."""
    moved = {id(buffer) for buffer in model.buffers()}
    pairs = unsaved(model).items()
    return {k: t for k, t in pairs if t.is_floating_point() and id(t) not in moved}
