"""Tables of Markdown, aligned so that a terminal shows them as tables too."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, of_numbers: bool = True) -> str:
    """The first column to the left, the others to the right where they are `of_numbers`.

    >>> print(markdown_table(["", "HR@10"], [["popularity", ".5"]]))
    |            | HR@10 |
    |------------|------:|
    | popularity |    .5 |
    """
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pad, mark = (str.rjust, ":") if of_numbers else (str.ljust, "-")
    padded = [[row[0].ljust(widths[0]), *map(pad, row[1:], widths[1:])] for row in cells]
    head, *body = ("| " + " | ".join(row) + " |" for row in padded)
    rule = "|" + "-" * (widths[0] + 2) + "".join("|" + "-" * (width + 1) + mark for width in widths[1:]) + "|"
    return "\n".join([head, rule, *body])
