"""Let a new version of a models folder answer as soon as it is the champion, without a pause."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from bert4rec.runtime.errors import UserError, in_one_line
from bert4rec.server.metrics import Metrics
from bert4rec.server.scorer import Scorer
from bert4rec.server.served import Served, signature

SECONDS_OF_PAUSE = 1.0  # between two looks
MOST_ATTEMPTS = 3  # looks at a folder whose champion cannot be loaded: it may be in the middle of a change

logger = logging.getLogger(__name__)


class Watch:
    """Looks at the models folder `place` in a thread; the `scorer` gets what `load` returns when it has changed.

    A version that cannot be loaded, or fails its test, is not taken; the one before goes on.
    """

    def __init__(self, place: Path, load: Callable[[], Served], scorer: Scorer, metrics: Metrics) -> None:
        self._place, self._load, self._scorer, self._metrics = place, load, scorer, metrics
        self._seen, self._end, self._n_failed = signature(place), threading.Event(), 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if self._seen:  # a run and a package do not change
            self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._end.set()
        if self._seen:
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(SECONDS_OF_PAUSE):
            self.look()

    def look(self) -> None:
        """Load and test what has changed, if anything has, and let it answer."""
        if (now := signature(self._place)) == self._seen:
            return
        before = self._scorer.served
        try:
            served = self._load()
            n_tested = served.test() if served.version != before.version else 0
        except Exception as error:  # whatever is wrong with it, the old one answers
            self._n_failed += 1
            if self._n_failed >= MOST_ATTEMPTS or not isinstance(error, UserError | OSError):
                self._seen, self._n_failed = now, 0
                self._metrics.switches.labels("failed").inc()
                logger.warning(f"goes on with {before.version}: {in_one_line(error)}")
            return
        self._seen, self._n_failed = now, 0
        self._scorer.serve(served)
        if served.version != before.version:
            self._metrics.switches.labels("taken").inc()
            self._metrics.serves(served.version)
            logger.info(f"answers with {served.version} instead of {before.version}; tested: {n_tested} examples")
