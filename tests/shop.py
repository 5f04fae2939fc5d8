"""A shop log in which a user looks at an article and buys it minutes later, often after others in the same visit."""

from pathlib import Path
from typing import Any

import numpy as np

import preprocessing

N_USERS, N_ITEMS, N_FAMILIES = 300, 80, 8


def write_shop(path: Path, *, seed: int = 4) -> None:
    """Visits of a user, days apart: views of one family, and for most the cart and the purchase of the last view.

    The family of a visit follows from that of the visit before, so that there is something to learn without the views.
    """
    draw = np.random.default_rng(seed)
    lines = ["user,item,time,event"]
    for user in range(N_USERS):
        time, family = 1_700_000_000 + int(draw.integers(0, 10**6)), int(draw.integers(N_FAMILIES))
        for _ in range(int(draw.integers(4, 8))):
            time += int(draw.integers(1, 9)) * 86_400
            family = (family + 1) % N_FAMILIES if draw.random() < 0.8 else int(draw.integers(N_FAMILIES))
            items = family + N_FAMILIES * draw.integers(0, N_ITEMS // N_FAMILIES, int(draw.integers(2, 5)))
            steps = [(item, "view") for item in items] + [(items[-1], "cart"), (items[-1], "purchase")]
            for item, event in steps if draw.random() < 0.9 else steps[:-2]:
                time += int(draw.integers(30, 200))
                lines.append(f"u{user},i{item},{time},{event}")
    path.write_text("\n".join(lines) + "\n")


def prepare_shop(place: Path, **changes: Any) -> Path:
    """The dataset folder of the log, in which purchases are predicted."""
    write_shop(place / "shop.csv")
    settings = {
        "data.path": place / "shop.csv", "data.source": "table", "data.event_column": "event",
        "data.dataset_dir": place / "dataset", "preprocessing.target_events": '["purchase"]',
        "preprocessing.n_eval_negatives": 5,
    } | changes  # fmt: skip
    assert preprocessing.main(["--config=/dev/null", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    return Path(settings["data.dataset_dir"])
