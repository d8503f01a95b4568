"""The certificate that is served, as a TLS context: built whole, checked, and only then served.

A pair that is loaded into a context in use changes what is served even when it turns out not to match. So a context
is never changed: there is a new one for every pair, and `ServedCertificate` holds the one that new connections take.
"""

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping

from tessera.core.errors import InvalidInput
from tessera.serving.metrics import Family, counter, gauge, labelled


class InvalidCertificate(InvalidInput):
    """A certificate and key that cannot be served."""


class ServedCertificate:
    """What the server shows to the next client that connects."""

    def __init__(self, context: ssl.SSLContext | None = None, clients: str | None = None) -> None:
        """Serve this; `clients` are the authorities (PEM) whose certificates clients must show, if they must."""
        self._context = context
        self._clients = clients
        if clients is not None:  # what is wrong with them is said now
            _require(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), clients)
        self._present = asyncio.Event()

    @property
    def present(self) -> bool:
        return self._context is not None

    async def wait(self) -> None:
        if not self.present:
            await self._present.wait()

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            raise RuntimeError("asked for a TLS context before there was a certificate")
        return self._context

    def change(self, context: ssl.SSLContext) -> None:
        """Serve this from the next connection on; those that are open stay as they are."""
        if self._clients is not None:
            _require(context, self._clients)
        self._context = context
        self._present.set()


def _require(context: ssl.SSLContext, authorities: str) -> None:
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidCertificate("no certificates of client authorities in PEM") from error
    context.verify_mode = ssl.CERT_REQUIRED


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """A context for this chain and key (PEM), which are known to belong together when it is returned."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # the API server would take HTTP/2 if it were offered
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # the API server keeps connections, not sessions: tickets are work for nothing
    try:
        # The standard library loads from files only: this one is in memory, and this process's alone.
        with os.fdopen(os.memfd_create("tessera-tls", os.MFD_CLOEXEC), "wb") as pair:
            pair.write(certificate + b"\n" + key)
            pair.flush()
            context.load_cert_chain(f"/proc/self/fd/{pair.fileno()}", password=_no_password)
    except ssl.SSLError as error:
        raise InvalidCertificate(_explain(error)) from error
    return context


def _no_password() -> bytes:
    raise InvalidCertificate("the private key is encrypted: give it without a password")


def _explain(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the certificate and the private key do not belong together"
    return f"no certificate chain and private key in PEM ({(error.reason or 'unreadable').lower().replace('_', ' ')})"


def certificate_metrics(ends: Mapping[str, float | None], errors: int) -> Iterable[Family]:
    """Metrics of certificates, whether we or an operator make them: when each ends, as far as that is known."""
    known = {(name,): end for name, end in ends.items() if end is not None}
    name, text = "gpu_webhook_certificate_expiry_timestamp_seconds", "When a certificate expires, Unix time."
    yield labelled(name, "gauge", text, ["certificate"], known)
    text = "Failed attempts to renew, publish or reload."
    yield counter("gpu_webhook_certificate_errors_total", text, errors)


def served_metrics(renewals: int, valid: bool) -> Iterable[Family]:
    yield counter("gpu_webhook_certificate_renewals_total", "Certificates put into service.", renewals)
    text = "1 while the dates of the serving certificate are valid."
    yield gauge("gpu_webhook_certificate_valid", text, int(valid))
