"""How far a training is, and when it has had enough."""

import pytest

from bert4rec.feed.order import Position
from bert4rec.training.loop.state import State


def test_the_best_is_remembered_and_the_others_are_counted() -> None:
    state = State(step=10)
    for step, ndcg in ((10, 0.1), (20, 0.3), (30, 0.3), (40, 0.2)):  # as good as the best is not better
        state.step = step
        state.note_validation(ndcg, step / 10, patience=3)
    assert (state.best_step, state.best_epoch, state.best_ndcg, state.n_worse) == (20, 2.0, 0.3, 2)
    assert state.stopped_by == ""
    state.note_validation(0.0, 5.0, patience=3)
    assert state.stopped_by == "patience"


def test_without_patience_nothing_stops() -> None:
    state = State(best_ndcg=1.0)
    for _ in range(50):
        state.note_validation(0.5, 1.0, patience=0)
    assert (state.n_worse, state.stopped_by) == (50, "")


@pytest.mark.parametrize(
    ("steps", "best", "every", "last"),
    [
        (200, 2, 2, 12), (200, 10, 2, 20), (200, 30, 2, 50), (200, 60, 2, 100), (200, 60, 10, 110),
        (20, 10, 2, 100), (20, 95, 5, 160),  # not in the first 2,000 steps
    ],
)  # fmt: skip
def test_by_itself_it_stops_after_five_and_two_fifths_of_all_epochs(
    steps: int, best: int, every: int, last: int
) -> None:
    state = State()
    for epoch in range(every, 1000, every):
        state.step = steps * epoch
        state.note_validation(epoch if epoch <= best else 0.0, epoch, patience="auto")
        if state.stopped_by:
            break
    assert (epoch, state.best_epoch, state.stopped_by) == (last, best, "patience")


def test_what_stopped_a_training_first_is_kept() -> None:
    state = State(best_ndcg=1.0, stopped_by="max_minutes")
    state.note_validation(0.5, 1.0, patience=1)
    assert state.stopped_by == "max_minutes"


def test_the_batches_continue_where_the_training_is() -> None:
    assert State(step=7, epochs=2, sequences=30).position == Position(epochs=2, sequences=30, steps=7)


def test_the_clock_makes_no_other_state() -> None:
    assert State(step=3, seconds=5.0).lasting() == State(step=3, seconds=9.0).lasting() != State(step=4).lasting()
