"""The server of `benchmarks.server_load --rectools`: `recommend` of RecTools behind FastAPI, without this package.

It runs in an environment of its own (`pip install 'rectools[torch]' fastapi uvicorn`, the same torch). The model is
RecTools' BERT4Rec of the shape of config.toml. It was fitted for one short epoch on users who had each item once, since
RecTools learns from the fit which items there are. A history comes as the interactions of a user, as its documentation
recommends for users that the fit did not see.
"""

import argparse
import logging
import warnings
from typing import Any

import numpy as np
import pandas as pd
import uvicorn
from fastapi import FastAPI
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import BERT4RecModel

LENGTH = 50


def main() -> None:
    """Fit the model and serve until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--items", "--port"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    numbers = np.random.default_rng(1).permutation(options.items)
    model = BERT4RecModel(n_factors=64, n_blocks=2, n_heads=2, session_max_len=50, epochs=1, loss="BCE")
    model.fit(_of_users(numbers // LENGTH, [f"i{number}" for number in numbers]))
    app = FastAPI()

    @app.post("/v1/recommend")
    def recommend(body: dict[str, Any]) -> list[dict[str, Any]]:
        history = body["queries"][0]["items"]
        found = model.recommend(["visitor"], _of_users("visitor", history), k=body["k"], filter_viewed=True)
        return found[[Columns.Item, Columns.Score]].to_dict("records")

    uvicorn.run(app, port=options.port, log_level="error", access_log=False)


def _of_users(users: Any, items: list[str]) -> Dataset:
    times = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(len(items)), unit="s")
    rows = pd.DataFrame({Columns.User: users, Columns.Item: items, Columns.Datetime: times, Columns.Weight: 1.0})
    return Dataset.construct(rows)


if __name__ == "__main__":
    main()
