"""A line each."""

from bert4rec.doctor.finding import Finding


def test_good_and_bad_lines() -> None:
    assert str(Finding("disk", "72 GB free")) == "good  disk: 72 GB free"
    assert str(Finding("disk", "full", "free some")) == "BAD   disk: full; free some"
    assert (Finding("disk", "72 GB free").is_good, Finding("disk", "full", "free some").is_good) == (True, False)
