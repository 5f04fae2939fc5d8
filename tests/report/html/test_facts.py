"""Time, memory, settings, each as it is shown."""

from bert4rec.report.html.facts import Fact, Part, Setting, data_facts, memory, other_settings, tiles, time_parts
from tests.report.html.run_by_hand import REPORT


def test_time_by_part() -> None:
    assert time_parts(REPORT) == [
        Part("start", "start", "2.0 s", 1.25),
        Part("training", "training steps", "1:20", 50.0),
        Part("validation", "validation", "10.0 s", 6.25),
        Part("saving", "checkpoints", "8.0 s", 5.0),
        Part("test", "test and baselines", "1:00", 37.5),
    ]
    assert time_parts({"training": {"seconds": 10.0}}) == []


def test_what_an_older_version_has_not_told_apart_is_named() -> None:
    parts = time_parts({"training": {"seconds": 90.0, "seconds_by_part": {"training": 50.0, "test": 10.0}}})
    assert [(part.kind, part.share) for part in parts] == [("training", 50.0), ("test", 10.0), ("rest", 40.0)]


def test_memory_of_each_process() -> None:
    assert memory(REPORT) == [["0", "1.5 MB", "800 kB", "537 MB"], ["1", "1.4 MB", "700 kB", "268 MB"]]
    assert memory({"training": {"peak_memory_bytes": [5]}}) == [["0", "–", "–", "5 B"]]
    assert memory({}) == []


def test_settings_that_are_not_as_by_default() -> None:
    defaults = {"model": {"kind": "bert4rec", "embed_dim": 64}, "parallelism": {"device": "auto"}, "run": {"name": ""}}
    settings = {
        "model": {"kind": "bert4rec", "embed_dim": 32, "new": True},
        "parallelism": {"device": "cpu"},
        "run": {"name": "x"},
    }
    assert other_settings(settings, defaults) == [
        Setting("model.embed_dim", "32", "64", False),
        Setting("model.new", "true", "–", False),
        Setting("parallelism.device", '"cpu"', '"auto"', True),
    ]


def test_a_model_of_ratings_has_its_error_among_the_large_figures() -> None:
    shown = tiles(REPORT | {"ratings": {"RMSE": 0.874, "MAE": 0.67}})
    assert Fact("RMSE", "0.8740", "MAE 0.6700") in shown
    assert shown[0] == Fact("HR@10", "0.3113", "0.3013 – 0.3213")


def test_a_dataset_of_an_older_report() -> None:
    facts = data_facts({"dataset": {"source": "ml-1m", "users": 6040, "items": 3416, "rows": 999_611}})
    assert [(fact.name, fact.value) for fact in facts] == [
        ("source", "ml-1m"), ("users", "6,040"), ("items", "3,416"), ("interactions", "999,611"), ("split", ""),
    ]  # fmt: skip
