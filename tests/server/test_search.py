"""The search finds what a scan of all titles finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.server.search import TitleSearch, simplified
from bert4rec.serving.histories import ItemIds

WORDS = st.sampled_from(["Crème", "brûlée", "creme", "BRULEE", "an", "anna", "banana", "a b", "Ünter", "x", "[", "(a"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(WORDS, max_size=4).map(" ".join), min_size=1, max_size=30),
    st.lists(WORDS, max_size=3).map(" ".join),
    st.integers(1, 40), st.randoms(use_true_random=False),
)  # fmt: skip
def test_it_finds_what_has_all_words_the_beginnings_first(titles, query, limit, random) -> None:
    counts = [random.randrange(5) for _ in titles]
    ids = ItemIds([f"i{item}" for item in range(len(titles))], titles, counts)
    lines = [simplified(title or f"i{item}") for item, title in enumerate(titles)]
    words = simplified(query).split()
    by_count = sorted(range(len(titles)), key=lambda item: -counts[item])

    def begins(line: str) -> bool:
        return all(
            any(
                line.startswith(word, at) and not (at and (line[at - 1].isalnum() or line[at - 1] == "_"))
                for at in range(len(line))
            )
            for word in words
        )

    has_all = [item for item in by_count if all(word in lines[item] for word in words)]
    expected = sorted(has_all, key=lambda item: not begins(lines[item]))
    assert TitleSearch(ids).find(query, limit) == expected[:limit]


def test_a_forgotten_item_is_not_found() -> None:
    search = TitleSearch(ItemIds(["a", None, "c"], ["one", "two", "three"]))
    assert search.find("two", 10) == []
    assert search.find("", 10) == [0, 2]
