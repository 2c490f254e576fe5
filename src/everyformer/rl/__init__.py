"""Reinforcement learning without models: environments, policies that need no training, and
trajectories as data.

    environments/    tasks of our own, registered as ``everyformer/NAME-v0``
    build.py         the one way to an environment: `make`, `make_vector`, `EnvironmentConfig`
    checked.py       a wrapper that names an environment where it does what it must not
    hidden.py        a wrapper that hides numbers of observations
    spaces.py        `Space`: which observations and actions there are, in plain values
    policy.py        `Policy`: what plays; random actions, noise
    experts.py       policies that solve an environment by knowing how it works
    recipes.py       `recipe`: tiers of data by the noise of an expert
    collection.py    `collect`: a policy plays, episodes are kept
    episode.py       `Episode`, `returns_to_go`
    trajectories.py  `Trajectories`: episodes with their environment, recipe and statistics
    minari_sets.py   `write_trajectories`: a data set of Minari's
    folder.py        `read_trajectories`: such a set, or a folder with a file an episode
    replay.py        `frames`: an episode as pictures

gymnasium and minari (extra ``rl``) are imported when something needs them. Names are looked up
late.
"""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer.rl.build import EnvironmentConfig as EnvironmentConfig
    from everyformer.rl.build import make as make
    from everyformer.rl.build import make_vector as make_vector
    from everyformer.rl.collection import collect as collect
    from everyformer.rl.episode import Episode as Episode
    from everyformer.rl.episode import returns_to_go as returns_to_go
    from everyformer.rl.folder import read_trajectories as read_trajectories
    from everyformer.rl.minari_sets import write_trajectories as write_trajectories
    from everyformer.rl.policy import Policy as Policy
    from everyformer.rl.recipes import recipe as recipe
    from everyformer.rl.replay import frames as frames
    from everyformer.rl.spaces import Space as Space
    from everyformer.rl.trajectories import Trajectories as Trajectories

_HOMES = {
    "EnvironmentConfig": "build",
    "Episode": "episode",
    "Policy": "policy",
    "Space": "spaces",
    "Trajectories": "trajectories",
    "collect": "collection",
    "frames": "replay",
    "make": "build",
    "make_vector": "build",
    "read_trajectories": "folder",
    "recipe": "recipes",
    "returns_to_go": "episode",
    "write_trajectories": "minari_sets",
}
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)
