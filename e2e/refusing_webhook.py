"""The smallest admission webhook: it refuses everything. It proves that the API server reaches webhooks at all."""

import base64
import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster.pki import Authority


class _Refuse(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        uid = review["request"]["uid"]
        review["response"] = {"uid": uid, "allowed": False, "status": {"message": "not today"}}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name for it
        pass


class RefusingWebhook:
    """Serves while entered, with a certificate for an address and a Service's name."""

    def __init__(self, address: str, service_name: str, folder: Path) -> None:
        authority = Authority(folder / "pki")
        pair = authority.issue("webhook", "webhook", hosts=[address, service_name])
        self._ca = authority.files.certificate.read_bytes()
        self._address = address
        self._server = ThreadingHTTPServer((address, 0), _Refuse)
        self.port: int = self._server.server_address[1]
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def service(self, name: str) -> str:
        """A Service without a selector, and the one endpoint behind it: this server."""
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": self.port}]},
        }
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": self.port}],
            "endpoints": [{"addresses": [self._address], "conditions": {"ready": True}}],
        }
        return f"{json.dumps(service)}\n---\n{json.dumps(endpoints)}"

    def configuration(self, namespace: str, client: Mapping[str, object]) -> str:
        """The configuration by which every ConfigMap of a namespace is sent here; it is named after the namespace."""
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["configmaps"],
        }
        webhook = {
            "name": "refusing.example.com",
            "clientConfig": {**client, "caBundle": base64.b64encode(self._ca).decode()},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
        }
        return json.dumps(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": namespace},
                "webhooks": [webhook],
            }
        )
