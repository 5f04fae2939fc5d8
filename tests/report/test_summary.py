"""What came out, in words."""

from typing import Any

from bert4rec.report.summary import summary


def report(**changes: Any) -> dict[str, Any]:
    def figures(value: float, protocol: str = "full") -> dict[str, Any]:
        return {protocol: {"users": 6040, "HR@10": value}}

    content = {
        "dataset": {"items": 3416, "rows": 999_611, "n_eval_negatives": 100},
        "test": figures(0.3113),
        "popularity_baseline": figures(0.0363),
    }
    return content | changes


def test_the_model_beside_popularity_the_strongest_baseline_and_the_best_possible() -> None:
    more = {
        "baselines": {"markov": {"full": {"HR@10": 0.2}}, "transition_graph": {"full": {"HR@10": 0.25}}},
        "best_possible": {"full": {"HR@10": 0.5}},
        "strongest_baseline": {"kind": "markov", "metric": "NDCG@10"},
        "intervals": {"test": {"full": {"HR@10": [0.3, 0.322]}}},
    }
    assert summary(report(**more)) == (
        "For 31.1 % of 6,040 test users, Bert4Rec has the item that came next among its first ten, out of 3,416 items "
        "(between 30.0 % and 32.2 %, with 95 % confidence). Popularity has it for 3.6 %: Bert4Rec finds 8.58 times as "
        "many. The strongest baseline without training, Markov, has it for 20.0 %. Nobody could do "
        "better than 50.0 % on these made-up data."
    )


def test_a_model_that_is_worse_than_popularity() -> None:
    worse = report(popularity_baseline={"full": {"users": 6040, "HR@10": 0.5}})
    assert summary(worse).endswith(" Popularity has it for 50.0 %: more than Bert4Rec.")
    nothing = report(popularity_baseline={"full": {"users": 6040, "HR@10": 0.0}})
    assert summary(nothing).endswith(" Popularity has it for 0.0 %.")


def test_sampled_items_are_said_to_be_that() -> None:
    sampled = {name: {"popular": {"users": 6040, "HR@10": 0.5}} for name in ("test", "popularity_baseline")}
    assert "among its first ten, out of it and 100 others drawn by popularity." in summary(report(**sampled))


def test_ratings_and_a_run_without_a_test() -> None:
    ratings = {"pairs": 10_000, "RMSE": 0.874, "MAE": 0.67, "baseline_RMSE": 1.05}
    assert summary(report(ratings=ratings)).endswith(
        " It predicts 10,000 held-out ratings with an RMSE of 0.8740 (always the mean rating: 1.0500)."
    )
    nothing = {"dataset": {"rows": 1200}, "training": {"epochs": 3}}
    assert summary(nothing) == (
        "Trained 3 epochs on all 1,200 interactions: nothing was held out, so that there is no test."
    )
