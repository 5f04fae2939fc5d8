"""What figures are of, in words."""

from bert4rec.report.protocols import protocols
from tests.report.markdown.test_page import METRICS, REPORT


def test_every_protocol_of_each_split_is_a_sentence() -> None:
    rules = (
        "Test: the last item of each user; validation: the last but one of a sample of the users. Seen is all of a "
        "user's history before the target. Ties go to the lower id; ids are shuffled."
    )
    found = protocols(REPORT | {"validation": {"uniform": METRICS}})
    assert list(found) == ["validation", "test"]
    assert found["validation"]["uniform"] == f"Among 10 unseen items drawn uniformly; 3 users. {rules}"
    assert list(found["test"]) == ["full", "popular"]
    assert found["test"]["full"].startswith("Full catalogue, without the items that the user has seen; 3 users. Test: ")
    assert protocols({"dataset": {}}) == {}
