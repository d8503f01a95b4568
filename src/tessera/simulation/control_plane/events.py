"""Events: what happened to an object, as `kubectl describe` shows it."""

import contextlib
import hashlib
from typing import Final

from tessera.simulation.control_plane.kinds import EVENTS
from tessera.simulation.control_plane.store import Document, StatusError, Store

_MOST: Final = 1000  # kept; a real cluster keeps them for an hour


class Events:
    """Writes events; the same event again is counted, not repeated."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(
        self, component: str, about: Document, reason: str, message: str, *, warning: bool = False
    ) -> None:
        metadata, moment = about["metadata"], self._store.now()
        namespace = metadata.get("namespace") or "default"
        same = hashlib.sha256(f"{metadata.get('uid')} {reason} {message}".encode()).hexdigest()[:16]
        name = f"{metadata['name']}.{same}"
        with contextlib.suppress(StatusError):
            event = self._store.get(EVENTS, name, namespace).document
            event |= {"count": event["count"] + 1, "lastTimestamp": moment}
            self._store.update(EVENTS, name, event, namespace)
            return
        named = {field: metadata.get(field) for field in ("namespace", "name", "uid")}
        event = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"kind": about.get("kind"), "apiVersion": about.get("apiVersion"), **named},
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
        kept = self._store.list(EVENTS)
        if len(kept) > _MOST:
            oldest = min(kept, key=lambda one: one.made)
            self._store.delete(EVENTS, oldest.key[1], oldest.key[0])
