"""A restored etcd goes on from a later revision, as etcd's own tool has it."""

import http.server
import json
import threading
from typing import ClassVar

from e2e.cluster.etcd import Etcd


class StandIn(http.server.BaseHTTPRequestHandler):
    """Counts revisions as etcd does: each write is one more."""

    protocol_version = "HTTP/1.1"
    revision = 7
    calls: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        call = self.path.rpartition("/")[2]
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        StandIn.calls.append(call if call != "compaction" else f"compaction {fields['revision']}")
        StandIn.revision += call in ("put", "deleterange")
        body = json.dumps({"header": {"revision": str(StandIn.revision)}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_revisions_go_on_from_the_newest():
    """It is written until the revision is later than the newest that clients saw; what lies before is compacted."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        etcd = Etcd(server.server_port)
        assert etcd.is_ready()
        assert etcd.revision() == 7
        StandIn.calls.clear()
        etcd.raise_revision(10)
        server.shutdown()
    assert StandIn.calls == ["range", *["put"] * 4, "deleterange", "compaction 12"]
    assert not Etcd(server.server_port).is_ready()
