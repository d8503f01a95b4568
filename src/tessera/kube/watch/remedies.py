"""What helps when a list or a watch failed: what to do next, and how long to wait before it."""

import random
from collections.abc import Callable
from enum import Enum
from typing import Final

from tessera.kube.errors import ApiError, KubeError


class WatchFailed(KubeError):
    """A watch that must be given up although the connection is there."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Next(Enum):
    """What to do after a failure."""

    WATCH = "watch again from the last version"
    LIST = "list again, not older than the last version"
    LIST_NEWEST = "list again, whatever version the server has"


# kinds of WatchFailed after which watching again from the last version would not help
_AFTER_WATCH_FAILED: Final = {"mute": Next.LIST, "backwards": Next.LIST_NEWEST}
# refused now, but not because of the version we asked for
_NOT_THE_VERSION: Final = frozenset({401, 403, 429})


def remedy(error: KubeError, *, as_event: bool) -> Next:
    """What to do after a failure; `as_event` when a watch told of it, after it had begun well."""
    if isinstance(error, WatchFailed):
        return _AFTER_WATCH_FAILED.get(error.kind, Next.WATCH)
    if not isinstance(error, ApiError):
        return Next.WATCH  # refused, lost, timed out: the server will know our version when it is back
    if error.is_expired or error.is_too_large_version:
        return Next.LIST_NEWEST
    if error.code in _NOT_THE_VERSION:
        return Next.WATCH
    if error.code >= 500:
        return Next.LIST if as_event else Next.WATCH
    return Next.LIST_NEWEST  # a version that this server takes for none at all


def refuses_streamed_list(error: KubeError) -> bool:
    """Whether the server does not stream lists: refused (422, or 400 by some), or it never heard of it."""
    if isinstance(error, ApiError):
        return error.code in (400, 405, 406, 415, 422, 501)
    return isinstance(error, WatchFailed) and error.kind == "ignored"


# as client-go's reflector: 0.8 s, doubling, to 30 s; a quarter more or less, so that many clients do not move as one
_FIRST: Final = 0.8
_LONGEST: Final = 30.0
_JITTER: Final = 0.25


class Backoff:
    """Waits that double from failure to failure and begin anew after a success."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._next = _FIRST

    def next(self) -> float:
        """Seconds to wait now."""
        wait = self._next * self._uniform(1 - _JITTER, 1 + _JITTER)
        self._next = min(2 * self._next, _LONGEST)
        return wait

    def reset(self) -> None:
        """Something went well."""
        self._next = _FIRST
