"""Recorded episodes as data; how they came to be is the user's own affair.

    spaces.py        `Space`: which observations and actions there are, in plain values
    episode.py       `Episode`, `returns_to_go`
    trajectories.py  `Trajectories`: episodes with their spaces, origin and statistics
    minari_sets.py   reads a data set of Minari's
    folder.py        `read_trajectories`: such a set, or a folder with a file an episode
    walks.py         `record`: a scripted behaviour in a small world; the built-in `walks`

minari (extra ``rl``) is imported when something needs it. Names are looked up late.
"""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer.data.episodes.episode import Episode as Episode
    from everyformer.data.episodes.episode import returns_to_go as returns_to_go
    from everyformer.data.episodes.folder import read_trajectories as read_trajectories
    from everyformer.data.episodes.spaces import Space as Space
    from everyformer.data.episodes.trajectories import Trajectories as Trajectories

_HOMES = {
    "Episode": "episode",
    "Space": "spaces",
    "Trajectories": "trajectories",
    "read_trajectories": "folder",
    "returns_to_go": "episode",
}
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)
