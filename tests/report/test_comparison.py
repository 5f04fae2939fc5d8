"""Two reports beside each other."""

from bert4rec.report.comparison import common_figures, differences

ONE = {"mode": "dmp", "test": {"full": {"users": 4, "HR@1": 0.25}}, "validation": {"full": {"MRR": 0.5}}}


def test_only_figures_that_both_have_are_compared_and_the_first_ones_named() -> None:
    assert differences(ONE, ONE) == ""
    assert len(list(common_figures(ONE, ONE))) == 3
    other = {"mode": "ddp", "test": {"full": {"users": 4, "HR@1": 0.5, "HR@5": 1.0}, "uniform": {"HR@1": 1.0}}}
    assert differences(ONE, other) == "1 of 2 figures differ: test full HR@1 0.25, not 0.5"
    many = {"test": {"full": {f"HR@{k}": k / 8 for k in range(1, 6)}}}
    none = {"test": {"full": dict.fromkeys(many["test"]["full"], 0.0)}}
    assert differences(many, none) == (
        "5 of 5 figures differ: test full HR@1 0.125, not 0; test full HR@2 0.25, not 0; test full HR@3 0.375, not 0 "
        "and 2 more"
    )


def test_the_last_bit_counts() -> None:
    assert differences({"test": {"full": {"MRR": 0.1 + 0.2}}}, {"test": {"full": {"MRR": 0.3}}})
