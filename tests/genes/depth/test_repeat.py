"""Depth `repeat`."""

import pytest
import torch

import everyformer as ef


@pytest.mark.parametrize("residual", ["pre", "post", "reversible"])
def test_one_block_three_times_is_three_layers_of_equal_weights(residual: str) -> None:
    own = {"reversible_output": "mean"} if residual == "reversible" else {}
    sizes = {"width": 16, "heads": 2, "vocabulary": 11, "residual": residual, **own}
    once = ef.create_model("alibi", layers=1, depth="repeat", times=3, **sizes).double()
    deep = ef.create_model("alibi", layers=3, **sizes).double()
    held = once.state_dict()
    shared = {f"stack.blocks.{n}{k[14:]}": w for k, w in held.items() for n in range(3)
              if k.startswith("stack.blocks.0")}  # fmt: skip
    deep.load_state_dict({**{k: w for k, w in held.items() if ".blocks." not in k}, **shared})
    tokens = torch.randint(0, 11, (2, 13))
    for task in (once, deep):
        task(tokens, targets=tokens).loss.backward()
    torch.testing.assert_close(once(tokens).logits, deep(tokens).logits, rtol=0, atol=1e-12)
    weight = once.stack.blocks[0].mixer.out.weight
    summed = sum(block.mixer.out.weight.grad for block in deep.stack.blocks)
    torch.testing.assert_close(weight.grad, summed, rtol=0, atol=1e-12)


def test_a_depth_is_needed_and_its_options_are_held_to_their_bounds() -> None:
    with pytest.raises(ef.EveryformerError, match="needs a depth"):
        ef.create_model("attention", depth=None)
    with pytest.raises(ef.EveryformerError, match="times` must be at least 1"):
        ef.create_model("attention", depth="repeat", times=0)
