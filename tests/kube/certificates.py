"""An authority for tests of the client, and a server that shows its certificates."""

import ssl
from pathlib import Path

from e2e.cluster.pki import PemPair, make_certificate


class PlainAuthority:
    """A certificate authority without key identifiers, as many clusters have it."""

    def __init__(self, name: str = "test-ca") -> None:
        self._pair = make_certificate(name, is_authority=True)
        self.pem = self._pair.certificate

    def issue(self, name: str, *hosts: str) -> PemPair:
        """A certificate for a client, or for a server at these names and addresses."""
        return make_certificate(name, issuer=self._pair, hosts=hosts)

    def server_context(self, folder: Path, *hosts: str, clients: bool = False) -> ssl.SSLContext:
        """TLS for a server; with `clients`, certificates of this authority are taken from clients."""
        files = self.issue("server", *(hosts or ("127.0.0.1", "localhost"))).write(folder / "server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        if clients:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata=self.pem.decode())
        return context
