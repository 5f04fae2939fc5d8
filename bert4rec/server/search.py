"""Search items by their titles."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from bert4rec.runtime.arrays import Int64s
from bert4rec.serving.histories import ItemIds

END = "\n"  # of a title in the text of all
MOST_LOOKED_AT = 100_000  # places in that text that a search looks at


class TitleSearch:
    """Search the titles of the items `ids`, or their ids where they have none; of a forgotten item there is nothing.

    All titles are one text, the most popular item first, without case and accents: so a search reads memory in order,
    and ends with the first good items.
    """

    def __init__(self, ids: ItemIds) -> None:
        everything = range(len(ids))
        titles, names = ids.titles_of(everything), ids.of(everything)
        order: Int64s = np.argsort(-np.asarray(ids.popularity, np.float64), kind="stable")
        self._order = order if ids.forgotten is None else order[~ids.forgotten[order]]
        lines = [simplified(titles[item] or str(names[item])) for item in self._order.tolist()]
        self._starts = np.cumsum([0, *(len(line) + 1 for line in lines)])[:-1]
        self._text = END.join([*lines, ""])

    def find(self, query: str, limit: int) -> list[int]:
        """Return the indices of at most `limit` items whose title has all words of the `query`.

        Those whose title has them as the beginnings of words come first, then the most popular ones.
        """
        words = simplified(query).split()
        if not words:
            return self._order[:limit].tolist()
        longest = re.escape(max(words, key=len))
        starts = [re.compile(rf"(?<!\w){re.escape(word)}") for word in words]
        found: dict[int, None] = {}

        def begins(line: str) -> bool:
            return all(start.search(line) for start in starts)

        def has(line: str) -> bool:
            return all(word in line for word in words)

        for pattern, is_good in ((rf"(?<!\w){longest}", begins), (longest, has)):
            for row in self._rows(re.compile(pattern)):
                if row not in found and is_good(self._line(row)):
                    found[row] = None
                    if len(found) == limit:
                        break
            if len(found) == limit:
                break
        return self._order[[*found]].tolist()

    def _rows(self, pattern: re.Pattern[str]) -> Iterator[int]:
        """Yield the rows, in order, of the lines in which the pattern occurs, each once."""
        last = -1
        for number, match in enumerate(pattern.finditer(self._text)):
            row = int(np.searchsorted(self._starts, match.start(), side="right")) - 1
            if row != last:
                yield (last := row)
            if number == MOST_LOOKED_AT:
                return

    def _line(self, row: int) -> str:
        return self._text[self._starts[row] : self._text.index(END, self._starts[row])]


def simplified(text: str) -> str:
    """Return a text without case, accents and line ends.

    >>> simplified("Crème\\nBRÛLÉE")
    'creme brulee'
    """
    plain: Sequence[str] = [one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one)]
    return " ".join("".join(plain).casefold().split())
