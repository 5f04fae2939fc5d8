"""Tables, to the letter."""

from bert4rec.report.markdown.table import markdown_table


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    assert markdown_table(["", "k", "HR@10"], [["a", "1", ".5"], ["longer", "10", ".25"]]).splitlines() == [
        "|        |  k | HR@10 |",
        "|--------|---:|------:|",
        "| a      |  1 |    .5 |",
        "| longer | 10 |   .25 |",
    ]
    assert markdown_table(["setting", "run A"], [["x", "a|b"]], of_numbers=False).splitlines() == [
        "| setting | run A |",
        "|---------|-------|",
        r"| x       | a\|b  |",
    ]
