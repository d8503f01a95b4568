"""How a reflector is doing, and what helps when a list or a watch failed."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tessera.kube.errors import ApiError, KubeError


@dataclass(slots=True)
class Health:
    """What there is to know about a reflector; read by metrics and readiness."""

    synced: bool = False
    absent: bool = False  # the server does not have this collection, or not for us
    forbidden: bool = False  # it is absent since we may not read it
    version: str = ""
    last_contact: float | None = None  # by the reflector's clock
    lists: int = 0
    watches: int = 0
    events: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    last_error: str = ""


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
    """What to do after a failure; `as_event` when it is an ERROR event of a watch that had begun well."""
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
    """Whether the server does not stream lists: refused (422, or 400 by some), or not known to it."""
    if isinstance(error, ApiError):
        return error.code in (400, 405, 406, 415, 422, 501)
    return isinstance(error, WatchFailed) and error.kind == "ignored"
