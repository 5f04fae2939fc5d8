"""Who stands in a report, in which order."""

from bert4rec.report.contestants import contestants, main_protocol

FULL = {"full": {"HR@10": 0.5}}


def test_the_model_first_then_the_baselines_then_the_best_possible() -> None:
    report = {
        "model": "SASRec", "test": FULL, "popularity_baseline": FULL, "best_possible": FULL,
        "baselines": {"popularity": FULL, "markov": FULL, "another": FULL},
        "intervals": {
            "test": {"full": {"HR@10": [0.4, 0.6]}}, "baselines": {"markov": {"full": {"HR@10": [0.1, 0.2]}}},
        },
    }  # fmt: skip
    found = contestants(report)
    assert [one.title for one in found] == ["SASRec", "popularity", "Markov", "another", "best possible"]
    assert [one.interval("full", "HR@10") for one in found] == [(0.4, 0.6), None, (0.1, 0.2), None, None]


def test_a_baseline_does_not_stand_beside_itself() -> None:
    report = {"model": "Popularity", "test": FULL, "popularity_baseline": FULL, "baselines": {"markov": FULL}}
    assert [one.kind for one in contestants(report)] == ["model", "markov"]


def test_older_reports_and_those_without_a_test() -> None:
    assert [one.title for one in contestants({"test": FULL})] == ["Bert4Rec"]
    assert contestants({}) == []
    assert main_protocol({}) is None
    assert main_protocol({"test": {"popular": {}, "full": {}}}) == "full"
    assert main_protocol({"test": {"uniform": {}, "popular": {}}}) == "uniform"
