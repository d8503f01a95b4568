"""Making keys and certificates. Nothing here knows of rotation, replicas or Kubernetes.

The library behind this costs 12 MiB of resident memory once it is imported, a quarter of what the whole webhook may
use, and is needed for a tenth of a second every other day. So the webhook runs this module as a program
(`python -I -m tessera.webhook.certificates.pki`: one question on standard input, one answer on standard output), and
only tools that end soon anyway import it.
"""

import datetime as dt
import sys
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tessera.core.errors import InvalidInput
from tessera.webhook.certificates.signer import Made, MakeAuthority, Question, SignLeaf

_LONGEST_NAME: Final = 64  # of a common name, by X.509


def answer(question: Question) -> Made:
    """Do what is asked; what is wrong with the question is in the answer."""
    try:
        if isinstance(question, MakeAuthority):
            return make_authority(question)
        if isinstance(question, SignLeaf):
            return sign_leaf(question)
        found = _load(question.certificate)
        return Made(
            not_before=found.not_valid_before_utc.timestamp(),
            not_after=found.not_valid_after_utc.timestamp(),
        )
    except InvalidInput as error:
        return Made(error=str(error))


async def ask(question: Question) -> Made:
    """Answer in this very process, for those that have the memory: see `Signer`."""
    return answer(question)


def make_authority(request: MakeAuthority) -> Made:
    """A key and a certificate that may sign leaves, and nothing but leaves."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # a name of its own: of two authorities in a bundle, verifiers find the right one by name
    subject = _name(f"Tessera webhook CA {serial:x}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), serial, request)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return _made(builder.sign(key, hashes.SHA256()), key)


def sign_leaf(request: SignLeaf) -> Made:
    """A new key, and a certificate for it, signed by the authority."""
    authority = _load(request.certificate)
    try:
        signer = serialization.load_pem_private_key(request.key, None)
    except (ValueError, TypeError) as error:
        raise InvalidInput("the authority's key is not a private key in PEM") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != authority.public_key():
        raise InvalidInput("the authority's certificate and key do not belong together")
    key = ec.generate_private_key(ec.SECP256R1())
    subject, names = _name(request.names[0]), [x509.DNSName(name) for name in request.names]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _builder(subject, authority.subject, key.public_key(), x509.random_serial_number(), request)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
    )
    return _made(builder.sign(signer, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    serial: int,
    request: MakeAuthority | SignLeaf,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(dt.datetime.fromtimestamp(int(request.not_before), dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(int(request.not_after), dt.UTC))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_LONGEST_NAME])])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise InvalidInput("this is not a certificate in PEM") from error


def _made(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Made:
    return Made(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


def main() -> None:
    question: Question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
