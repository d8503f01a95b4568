"""Objects that change whenever a rollout writes to them: after some conflicts in a row they are left alone, longer each time."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from tessera.kube.clock import Retries

MOST_TRIES: Final = 5  # a kubelet writes its node every few seconds: two conflicts in a row are rare
# Seconds, doubling. A try reads the object and writes it: five make ten requests in the first minute, and then it is one a minute at most
_FIRST: Final = 120.0
_LONGEST: Final = 480.0
_BETWEEN: Final = 2.0  # seconds before the third try and those after it: a burst of changes is over by then


class Conflicts:
    """Conflicts in a row, by the object's path or name."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rows = Counter[str]()
        self._pauses: dict[str, float] = {}  # until when an object is not tried again, before it rests
        self._retries = Retries(now, _FIRST, _LONGEST)

    def note(self, subject: str) -> None:
        """A write met a conflict."""
        self._rows[subject] += 1
        if self._rows[subject] >= MOST_TRIES:
            self._retries.put_off(subject)
        elif self._rows[subject] > 1:
            self._pauses[subject] = self._now() + _BETWEEN

    def forget(self, subject: str) -> None:
        """A write went through, or the object is to be tried again at once."""
        self._rows.pop(subject, None)
        self._pauses.pop(subject, None)
        self._retries.forget(subject)

    def is_resting(self, subject: str) -> bool:
        """Whether the object is left alone now."""
        return not self._retries.is_due(subject)

    def is_pausing(self, subject: str) -> bool:
        """Whether the next try has to wait for some seconds, so that one burst of changes is not a long row."""
        return self._now() < self._pauses.get(subject, 0.0)
