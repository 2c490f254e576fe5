"""Proximal policy optimisation (Schulman et al. 2017) of a GTrXL, in one file.

    python examples/ppo_gtrxl.py --env CartPole-v1
    python examples/ppo_gtrxl.py --env popgym-RepeatFirstEasy-v0 --slots 64 --scale 1
    python examples/ppo_gtrxl.py --env CartPole-v1 --resume

(pip install 'everyformer[rl]', and popgym for its environments; results are in README.md beside.)

What the library brings is `ef.create_body`: layers that read vectors step by step, continue a
state, and forget where an episode begins. Any member that streams will do (--member linear). All
else is here, to be changed: environments of gymnasium with actions to choose from, rollouts,
advantages, the loss, checkpoints.

A rollout has T steps of N environments, and is learned from in whole rows: all T steps of some
environments at once, each continuing the state that the body had when the rollout began. With
dropout 0, memories of inputs and a span that is the same at every step this computes what was
computed step by step, so that ratios begin at 1.

gymnasium resets an environment in the step after an episode's end: the action of that step means
nothing, and what is seen before it is the last observation of the episode. So the value of that
step is what a truncated episode is cut with, and the step itself is masked out of the loss.
"""

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

import everyformer as ef


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="PPO of a Transformer with a memory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--env", default="CartPole-v1", help="as gymnasium names it; popgym-... imports popgym")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=None, help="folder (None: runs/ppo-ENV-SEED)")
    add("--resume", action="store_true", help="go on from the folder's checkpoint")
    add("--stop-after", type=int, default=None, help="updates after which to stop for now")
    add("--save-every", type=int, default=50, help="updates between checkpoints")
    add("--steps", type=int, default=150_000, help="of all environments together")
    add("--envs", type=int, default=8, help="environments side by side")
    add("--horizon", type=int, default=128, help="steps of a rollout")
    add("--epochs", type=int, default=4, help="how often a rollout is learned from")
    add("--minibatches", type=int, default=4, help="parts of the environments, one an update")
    add("--member", default="gtrxl", help="any that streams (everyformer list --streaming)")
    add("--width", type=int, default=64)
    add("--layers", type=int, default=1)
    add("--heads", type=int, default=4)
    add("--slots", type=int, default=32, help="steps that are remembered; 0: no memory")
    add("--lr", type=float, default=1e-3, help="at the start; it falls to 0")
    add("--scale", type=float, default=0.02, help="of rewards, so that values are of size 1")
    add("--gamma", type=float, default=0.99, help="discount")
    add("--lam", type=float, default=0.95, help="lambda of generalised advantage estimation")
    add("--clip", type=float, default=0.2, help="of the ratio of probabilities")
    add("--entropy", type=float, default=0.01, help="weight of the entropy")
    add("--value", type=float, default=0.5, help="weight of the squared error of values")
    add("--norm", type=float, default=0.5, help="gradients are cut to")
    args = parser.parse_args(words)
    if args.envs % args.minibatches:
        parser.error(f"--envs {args.envs} must be a multiple of --minibatches {args.minibatches}")
    name = args.env.replace("/", "-")
    args.out = args.out or Path("runs") / f"ppo-{name}-{args.seed}"
    args.updates = args.steps // (args.envs * args.horizon)
    return args


class Agent(nn.Module):
    """Observations (B, L, n) -> logits (B, L, actions), values (B, L), the state behind them."""

    def __init__(self, seen: int, actions: int, args: argparse.Namespace) -> None:
        super().__init__()
        options: dict[str, Any] = {"width": args.width, "layers": args.layers, "heads": args.heads}
        if args.member in ("gtrxl", "transformer-xl"):
            memory = {"slots": args.slots, "same_length": "always", "store": "inputs"}
            options |= {"memory_options": memory, "embedding_dropout": 0.0}
        self.read = nn.Linear(seen, args.width)
        self.body = ef.create_body(args.member, dropout=0.0, **options)
        self.norm = nn.LayerNorm(self.body.out_width)
        self.act = nn.Linear(self.body.out_width, actions)
        self.value = nn.Linear(self.body.out_width, 1)
        nn.init.orthogonal_(self.act.weight, 0.01)
        nn.init.zeros_(self.act.bias)

    def forward(self, x: Tensor, state: Any, reset: Tensor) -> tuple[Tensor, Tensor, Any]:
        y, state = self.body(self.read(x), state, reset)
        y = self.norm(y)
        return self.act(y), self.value(y)[..., 0], state


class Rollout(NamedTuple):
    """T steps of N environments, (N, T) each unless it says otherwise."""

    seen: Tensor
    """(N, T, numbers)"""
    first: Tensor
    """an episode begins with this step"""
    valid: Tensor
    """the action of the step had an effect"""
    action: Tensor
    before: Tensor
    """log-probability of the action"""
    value: Tensor
    reward: Tensor
    ended: Tensor
    """the episode ended with this step's action: nothing is to come"""
    cut: Tensor
    """it was truncated: what was to come is what is expected then"""


def advantages(r: Rollout, last: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016), (N, T); ``last`` (N,) is the value
    after the rollout."""
    after = torch.cat([r.value[:, 1:], last[:, None]], 1)
    error = r.reward + gamma * after * ~r.ended - r.value
    goes_on = gamma * lam * ~(r.ended | r.cut)
    result, total = torch.empty_like(r.value), torch.zeros_like(last)
    for t in reversed(range(r.value.shape[1])):
        total = error[:, t] + goes_on[:, t] * total
        result[:, t] = total
    return result


class Player:
    """Environments, and where the body is in each of them."""

    def __init__(self, agent: Agent, envs: gym.vector.VectorEnv, args: argparse.Namespace) -> None:
        self.agent, self.envs, self.args = agent, envs, args
        self.returns: list[float] = []
        """of finished episodes, the last hundred"""

    def begin(self, seed: int) -> None:
        """New episodes everywhere."""
        self.seen = self.envs.reset(seed=seed)[0]
        self.first = np.ones(self.envs.num_envs, bool)
        self.over = np.zeros(self.envs.num_envs, bool)
        self.total = np.zeros(self.envs.num_envs)
        self.state = self.agent.body.init_state(self.envs.num_envs)

    @torch.no_grad()
    def rollout(self) -> tuple[Rollout, Any, Tensor]:
        """A rollout, the state that it began with, and the values of what is seen after it."""
        steps, began = [], self.state
        for _ in range(self.args.horizon):
            seen, first = self._tensor(self.seen), torch.from_numpy(self.first)
            logits, value, self.state = self.agent(seen[:, None], self.state, first[:, None])
            chosen = Categorical(logits=logits[:, 0])
            action = chosen.sample()
            after, reward, ended, cut, _ = self.envs.step(action.numpy())
            facts = ((self.args.scale * reward).astype(np.float32), ended, cut)
            step = (seen, first, torch.from_numpy(~self.over), action, chosen.log_prob(action))
            steps.append((*step, value[:, 0], *map(torch.from_numpy, facts)))
            # the step after an end resets, and what it gives is the first of a new episode
            self.seen, self.first, self.over = after, self.over, ended | cut
            self.total += reward
            self.returns = [*self.returns, *self.total[self.over].tolist()][-100:]
            self.total[self.over] = 0.0
        first = torch.from_numpy(self.first)
        _, last, _ = self.agent(self._tensor(self.seen)[:, None], self.state, first[:, None])
        rows = Rollout(*(torch.stack(values, 1) for values in zip(*steps, strict=True)))
        return rows, began, last[:, 0]

    def _tensor(self, seen: np.ndarray) -> Tensor:
        return torch.as_tensor(seen, dtype=torch.float32)


def learn(
    agent: Agent, optimiser: torch.optim.Optimizer, rollout: Rollout, began: Any, last: Tensor,
    args: argparse.Namespace,
) -> dict[str, float]:  # fmt: skip
    """Some epochs on a rollout; the means of losses and measures."""
    r = rollout
    gain = advantages(r, last, args.gamma, args.lam)
    goal = gain + r.value
    real = gain[r.valid]
    gain = (gain - real.mean()) / (real.std() + 1e-8)
    told: dict[str, list[float]] = {"policy": [], "value": [], "entropy": [], "kl": []}
    for _ in range(args.epochs):
        for rows in torch.randperm(args.envs).chunk(args.minibatches):
            logits, value, _ = agent(r.seen[rows], began.reorder(rows), r.first[rows])
            chosen, valid = Categorical(logits=logits), r.valid[rows]
            change = chosen.log_prob(r.action[rows]) - r.before[rows]
            ratio = change.exp()
            bounded = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy = -torch.minimum(ratio * gain[rows], bounded * gain[rows])[valid].mean()
            error = F.mse_loss(value[valid], goal[rows][valid])
            entropy = chosen.entropy()[valid].mean()
            optimiser.zero_grad()
            (policy + args.value * error - args.entropy * entropy).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.norm)
            optimiser.step()
            kl = ((ratio - 1) - change)[valid].mean()
            for name, each in zip(told, (policy, error, entropy, kl), strict=True):
                told[name].append(float(each.detach()))
    return {name: sum(values) / len(values) for name, values in told.items()}


def save(file: Path, agent: Agent, optimiser: torch.optim.Optimizer, **more: Any) -> None:
    """Write a checkpoint, whole or not at all. It holds no environments: where there is one, all
    episodes start over, in the run that goes on as in the one that is resumed."""
    parts = {"agent": agent.state_dict(), "optimiser": optimiser.state_dict()}
    beside = file.with_suffix(".new")
    torch.save({**parts, "random": torch.get_rng_state(), **more}, beside)
    beside.replace(file)


def make(args: argparse.Namespace) -> gym.vector.VectorEnv:
    if args.env.startswith("popgym"):
        importlib.import_module("popgym")
    resets = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
    envs = gym.make_vec(
        args.env, args.envs, vectorization_mode="sync", vector_kwargs=resets,
        wrappers=[gym.wrappers.FlattenObservation],
    )  # fmt: skip
    if not isinstance(envs.single_action_space, gym.spaces.Discrete):
        raise SystemExit(f"{args.env} has actions {envs.single_action_space}; Discrete is needed")
    return envs


def main(words: list[str] | None = None) -> Agent:
    args = parse(words)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = make(args)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n), args)
    optimiser = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    player, update = Player(agent, envs, args), 0
    args.out.mkdir(parents=True, exist_ok=True)
    file, log = args.out / "checkpoint.pt", args.out / "log.jsonl"
    apart = ("out", "resume", "stop_after")
    options = {name: value for name, value in vars(args).items() if name not in apart}
    if args.resume:
        known = torch.load(file, weights_only=True)
        if known["options"] != options:
            raise SystemExit(f"{file} was made with other options: {known['options']}")
        agent.load_state_dict(known["agent"])
        optimiser.load_state_dict(known["optimiser"])
        torch.set_rng_state(known["random"])
        update, player.returns = known["update"], known["returns"]
        rows = log.read_text().splitlines()[:update]
        log.write_text("".join(f"{row}\n" for row in rows))
    else:
        log.write_text("")
    start, stop = time.perf_counter(), min(args.updates, args.stop_after or args.updates)
    while update < stop:
        if update % args.save_every == 0:
            player.begin(args.seed * 1_000_003 + update)
        for group in optimiser.param_groups:
            group["lr"] = args.lr * (1 - update / args.updates)
        told = learn(agent, optimiser, *player.rollout(), args)
        update += 1
        steps = update * args.envs * args.horizon
        mean = float(np.mean(player.returns)) if player.returns else None
        with log.open("a") as lines:
            print(json.dumps({"steps": steps, "return": mean, **told}), file=lines)
        if update % 10 == 0 or update == stop:
            said = "no episode yet" if mean is None else f"return {mean:.4g}"
            measures = ", ".join(f"{name} {value:.3g}" for name, value in told.items())
            seconds = time.perf_counter() - start
            print(f"{steps:>9,} steps  {said:<16} {measures}  ({seconds:.0f} s)", flush=True)
        if update % args.save_every == 0 or update == args.updates:
            save(file, agent, optimiser, update=update, returns=player.returns, options=options)
    envs.close()
    return agent


if __name__ == "__main__":
    main()
