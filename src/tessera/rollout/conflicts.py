"""Objects that change whenever a rollout writes to them: after some conflicts in a row they are left alone, longer each time."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from tessera.kube.failures import Retries

MOST_TRIES: Final = 5  # a kubelet writes its node every few seconds: two conflicts in a row are rare
# Seconds, doubling. A try reads the object and writes it: five make ten requests in the first minute, and then it is one a minute at most
_FIRST: Final = 120.0
_LONGEST: Final = 480.0
_BETWEEN: Final = 2.0  # seconds before the third try and those after it: a burst of changes is over by then


class Conflicts:
    """Conflicts in a row, by the object's path."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rows = Counter[str]()
        self._pauses: dict[str, float] = {}  # until when an object is not tried again, before it rests
        self._retries = Retries(now, _FIRST, _LONGEST)

    def note(self, path: str) -> None:
        """A write met a conflict."""
        self._rows[path] += 1
        if self._rows[path] >= MOST_TRIES:
            self._retries.put_off(path)
        elif self._rows[path] > 1:
            self._pauses[path] = self._now() + _BETWEEN

    def forget(self, path: str) -> None:
        """A write went through, or the object is to be tried again at once."""
        self._rows.pop(path, None)
        self._pauses.pop(path, None)
        self._retries.forget(path)

    def is_resting(self, path: str) -> bool:
        """Whether the object is left alone now."""
        return not self._retries.is_due(path)

    def is_pausing(self, path: str) -> bool:
        """Whether the next try has to wait for some seconds, so that one burst of changes is not a long row."""
        return self._now() < self._pauses.get(path, 0.0)
