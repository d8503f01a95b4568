"""Certificates on the wire: versions, protocols, swaps."""

import asyncio
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from e2e.cluster.pki import PemPair

from tessera.serving.metrics import exposition
from tessera.serving.reload import Followed
from tessera.webhook.certificates.files import CertificateFiles
from tessera.webhook.certificates.served import InvalidCertificate, ServedCertificate, server_context
from tessera.webhook.certificates.signer import Signer
from tests.webhook.certificates.authorities import JumpingClock, ask
from tests.webhook.support import PAIR, Client, Live, context_of, make_pair

ENCRYPTED = serialization.load_pem_private_key(PAIR.key, None).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)


def test_served():
    """TLS 1.3, HTTP/1.1 even if HTTP/2 is on offer, and the certificate that was given."""
    with Live() as live, Client(live.port, trust=PAIR.certificate) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() == "TLSv1.3"
        assert client.socket.selected_alpn_protocol() == "http/1.1"
        assert client.post(b"x").body == b"x"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions():
    """TLS 1.2 is spoken, 1.1 is not; the failure is counted and nothing else is hurt."""
    with Live() as live:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", live.port)) as raw,
            context.wrap_socket(raw) as secure,
        ):
            assert secure.version() == "TLSv1.2"
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with socket.create_connection(("127.0.0.1", live.port)) as raw, pytest.raises(ssl.SSLError):
            context.wrap_socket(raw)
        live.until(lambda: live.listener.counters.handshake_failures == 1)
        with live.connect() as client:
            assert client.post(b"next").body == b"next"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(300)])
def test_no_handshake(sent):
    """A client that speaks no TLS, or nothing, is left behind."""
    with Live() as live:
        with socket.create_connection(("127.0.0.1", live.port)) as raw:
            raw.sendall(sent)
        live.until(lambda: live.listener.counters.handshake_failures == 1)
        with live.connect() as client:
            assert client.post(b"next").body == b"next"


def test_swap():
    """New connections get the new certificate, with and without SNI; open ones stay."""
    other = make_pair()
    with Live() as live, Client(live.port, trust=PAIR.certificate) as old:
        live.served.change(context_of(other))
        with Client(live.port, trust=other.certificate) as new:
            assert new.post(b"new").body == b"new"
        assert old.post(b"old").body == b"old"
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(live.port, trust=PAIR.certificate)


@pytest.mark.parametrize(
    ("certificate", "key", "complaint"),
    [
        (PAIR.certificate, make_pair().key, "the certificate and the private key do not belong together"),
        (b"", PAIR.key, "no certificate chain and private key in PEM"),
        (PAIR.certificate, b"", "no certificate chain and private key in PEM"),
        (PAIR.certificate[:200], PAIR.key, "no certificate chain and private key in PEM"),
        (b"\x00\xff", b"nonsense", "no certificate chain and private key in PEM"),
        (
            PAIR.certificate,
            ENCRYPTED,
            "the private key is encrypted: give it without a password",
        ),
    ],
    ids=["mismatch", "no-certificate", "no-key", "cut", "nonsense", "encrypted"],
)
def test_bad_pairs(certificate, key, complaint):
    """A pair that cannot be served is refused in one sentence."""
    with pytest.raises(InvalidCertificate, match=complaint) as caught:
        server_context(certificate, key)
    assert "\n" not in str(caught.value)


def test_fault_13_mismatch_on_disk(tmp_path):
    """A pair that does not match changes nothing, is reported and shows; the next good pair is served."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(pair: PemPair) -> None:
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    write(PAIR)
    served = ServedCertificate()
    told: list[str | None] = []
    followed = Followed(
        "certificate",
        [certificate, key],
        server_context,
        served.change,
        lambda _, error: told.append(error),
    )
    followed.load()
    with Live(served=served) as live:
        other = make_pair()
        key.write_bytes(other.key)
        live.run(followed.check())
        live.run(followed.check())
        assert told == [f"{certificate}, {key}: the certificate and the private key do not belong together"]
        assert (followed.bad, followed.current) == (1, False)
        with Client(live.port, trust=PAIR.certificate) as client:
            assert client.post(b"x").body == b"x"
        write(other)
        live.run(followed.check())
        assert followed.current
        with Client(live.port, trust=other.certificate) as client:
            assert client.post(b"x").body == b"x"


def test_fault_32_given_certificate_ends(tmp_path):
    """A pair in files that has ended: not ready, log and metric say so with the date; a new pair is served and all is well."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(pair: PemPair) -> None:
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    told: list[tuple[str, str | None]] = []
    clock = JumpingClock()

    async def main() -> None:
        write(PAIR)
        files = CertificateFiles(
            certificate, key, ServedCertificate(), Signer(ask), lambda *one: told.append(one), clock
        )
        await files.inspect()
        assert (files.not_ready(), told) == (None, [])
        assert b"gpu_webhook_certificate_valid 1\n" in exposition(files.metrics())
        clock.ahead = 31 * 86400.0
        await files.inspect()
        await files.inspect()
        ended = x509.load_pem_x509_certificate(PAIR.certificate).not_valid_after_utc
        ((message, problem),) = told
        assert message == "API servers refuse the certificate"
        assert (problem or "").startswith(f"the serving certificate expired on {ended:%Y-%m-%d %H:%M:%S} UTC")
        assert files.not_ready() == problem
        text = exposition(files.metrics())
        assert b"gpu_webhook_certificate_valid 0\n" in text
        assert b'expiry_timestamp_seconds{certificate="serving"}' in text
        clock.ahead += 600
        await files.inspect()
        assert len(told) == 2  # not forgotten
        write(make_pair(days=90))
        await files.followed.check()
        await files.inspect()
        assert files.not_ready() is None
        assert told[2:] == [("certificate reloaded", None)]
        clock.ahead = -86400.0
        await files.inspect()
        assert "is not valid before" in (told[-1][1] or "")

    asyncio.run(main())
