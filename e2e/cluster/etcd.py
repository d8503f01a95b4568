"""What tests ask of etcd itself: its revision, and that it goes on from a later one. etcd answers JSON over HTTP for that."""

import base64
import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

_KEY = base64.b64encode(b"tessera-e2e").decode()


class Etcd:
    """The etcd of a cluster, by its client port."""

    def __init__(self, port: int) -> None:
        self._port = port

    def is_ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return self.revision() > 0
        return False

    def revision(self) -> int:
        """The revision of its newest write."""
        with self._connected() as connection:
            return _revision(_ask(connection, "range", key=_KEY))

    def raise_revision(self, least: int) -> None:
        """Write until the revision is later than this, and compact what lies before."""
        with self._connected() as connection:
            revision = _revision(_ask(connection, "range", key=_KEY))
            while revision <= least:
                revision = _revision(_ask(connection, "put", key=_KEY, value=_KEY))
            revision = _revision(_ask(connection, "deleterange", key=_KEY))
            _ask(connection, "compaction", revision=str(revision))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        ) as connection:
            yield connection


def _ask(connection: http.client.HTTPConnection, call: str, **fields: str) -> Any:
    connection.request("POST", f"/v3/kv/{call}", body=json.dumps(fields))
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != http.client.OK:
        raise ValueError(f"etcd refuses {call}: {answer}")
    return answer


def _revision(answer: Any) -> int:
    return int(answer["header"]["revision"])
