"""Files that change while we run.

Each check reads what the path leads to now: that notices a write, an editor's rename, and the swapped link of a
mounted ConfigMap or Secret alike.
"""

from pathlib import Path

Signature = tuple[int, ...]


def signature_of(path: Path) -> Signature | None:
    """What changes when the file does, links followed; None when there is no file that we may read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class WatchedFiles:
    """Some files, and how they were at the last check."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self._seen: list[Signature | None] | None = None

    def changed(self) -> bool:
        """Whether a file has changed since the last check; at the first check, always.

        Read after this call: a change while reading is then seen by the next check.
        """
        before, self._seen = self._seen, [signature_of(path) for path in self.paths]
        return self._seen != before
