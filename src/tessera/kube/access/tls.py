"""TLS contexts from PEM in memory or in files that are renewed while we run."""

import os
import ssl
import sys
from pathlib import Path

from tessera.kube.access.cluster import Credential, Material, Tls
from tessera.kube.errors import CredentialsFailed


class TlsContexts:
    """Makes the TLS context for a new connection, and the same one again until something changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._made_from: tuple[bytes | None, Credential] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, credential: Credential) -> ssl.SSLContext:
        """The context for this credential; files are read now, so that a renewed CA counts from now on."""
        ca = read_material(self._tls.ca, "certificate authority") if self._tls.ca is not None else None
        identity = Credential(certificate=credential.certificate, key=credential.key)
        if self._context is None or self._made_from != (ca, identity):
            # a fresh context each time: changing a live one would break handshakes under way
            self._context = make_context(ca, insecure=self._tls.insecure, identity=identity)
            self._made_from = (ca, identity)
        return self._context


def make_context(ca: bytes | None, *, insecure: bool, identity: Credential) -> ssl.SSLContext:
    """A client context that speaks HTTP/1.1, trusts `ca` alone when given, and shows our certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Python 3.13 made RFC 5280 strictness the default; many clusters' own authorities lack a key identifier
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(
                cadata=ca.decode("ascii", "ignore")
            )  # comments may be in any language
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsFailed("certificate authority: there is no PEM certificate in it") from error
    if identity.certificate is not None and identity.key is not None:
        _load_identity(context, identity.certificate, identity.key)
    return context


def _load_identity(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads a key from a file only: one in memory where there is such a thing, so no key stays on a disk."""
    pem = certificate.rstrip() + b"\n" + key
    try:
        if sys.platform == "linux":
            descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
            with os.fdopen(descriptor, "wb") as file:
                file.write(pem)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")  # empty: never ask
        else:
            import tempfile  # a webhook has no use for it, nor for the megabyte that it takes

            with tempfile.NamedTemporaryFile() as file:
                file.write(pem)
                file.flush()
                context.load_cert_chain(file.name, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not a PEM certificate and its unencrypted key"
        raise CredentialsFailed(f"client certificate and key: {reason}") from error


def read_material(material: Material, what: str) -> bytes:
    """PEM, from memory or from its file."""
    if isinstance(material, bytes):
        return material
    try:
        return Path(material).read_bytes()
    except OSError as error:
        raise CredentialsFailed(f"{what}: cannot read {material}: {error.strerror}") from error
