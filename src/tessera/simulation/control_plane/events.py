"""Events: what happened to an object, as `kubectl describe` shows it."""

import contextlib
import secrets
from datetime import UTC, datetime
from typing import Final

from tessera.simulation.control_plane.kinds import EVENTS
from tessera.simulation.control_plane.store import Document, StatusError, Store

_MOST: Final = 1000  # kept; a real cluster keeps them for an hour


class Events:
    """Writes events; the same thing said again is counted, not repeated."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[tuple[str, str, str], tuple[str, str]] = {}  # uid, reason, message → the event

    def record(
        self, component: str, about: Document, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Something happened to an object."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = (str(metadata.get("uid")), reason, message)
        if self._again(key, moment):
            return
        name = f"{metadata['name']}.{secrets.token_hex(8)}"
        event = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "kind": about.get("kind"),
                "apiVersion": about.get("apiVersion"),
                "namespace": metadata.get("namespace"),
                "name": metadata["name"],
                "uid": metadata.get("uid"),
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "reportingComponent": component,
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
        }
        self._store.create(EVENTS, event, namespace)
        self._names[key] = (namespace, name)
        while len(self._names) > _MOST:
            old = self._names.pop(next(iter(self._names)))
            with contextlib.suppress(StatusError):
                self._store.delete(EVENTS, old[1], old[0])

    def _again(self, key: tuple[str, str, str], moment: str) -> bool:
        """Count an event that is there already."""
        if key not in self._names:
            return False
        namespace, name = self._names[key]
        try:
            event = self._store.get(EVENTS, name, namespace).document
        except StatusError:
            return False  # it was deleted
        event |= {"count": event.get("count", 1) + 1, "lastTimestamp": moment}
        self._store.update(EVENTS, name, event, namespace)
        return True
