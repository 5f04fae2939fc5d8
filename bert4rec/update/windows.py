"""Choose the training windows of an update: those with new interactions, mixed with a share of older ones."""

from pathlib import Path

import numpy as np

from bert4rec.dataset.histories import Histories, TrainingWindows
from bert4rec.runtime.arrays import Int64s

REPLAY_STREAM = 0x5245504C  # separates the draw of older windows from all else that is drawn by the seed


def choose_windows(windows: TrainingWindows, older: Histories, *, replay: float, seed: int) -> Int64s:
    """Return the windows with interactions that were not for training in `older`, as `ChosenWindows` reads them [n, 2].

    Of the other windows as many are drawn, by the `seed`, that they are the share `replay` of all that are returned, or
    all of them if they are fewer. They are in ascending order. Both histories number users alike.
    """
    new, n_new = windows.of_last(new_interactions(windows.histories, older))
    n_others = min(round(len(new) * replay / (1 - replay)), len(windows) - len(new))
    generator = np.random.default_rng([seed, REPLAY_STREAM])
    drawn = generator.choice(len(windows) - len(new), n_others, replace=False, shuffle=False)
    # the numbers of the others, counted without the new ones → those of all windows
    others = drawn + np.searchsorted(new - np.arange(len(new)), drawn, side="right")
    chosen = np.stack([np.concatenate([new, others]), np.concatenate([n_new, np.zeros_like(others)])], axis=1)
    return chosen[np.argsort(chosen[:, 0])]


def new_interactions(histories: Histories, older: Histories) -> Int64s:
    """Return how many training interactions each of the `histories` [N] has more than in the `older` dataset."""
    n_older = np.zeros(1 + max(int(histories.users.max(initial=0)), int(older.users.max(initial=0))), np.int64)
    n_older[older.users] = older.n_train
    return np.maximum(0, histories.n_train - n_older[histories.users])


def write_windows(path: Path, chosen: Int64s) -> None:
    """Write the chosen windows to a file that processes map."""
    unfinished = path.with_suffix(".tmp.npy")
    np.save(unfinished, chosen)
    unfinished.replace(path)
