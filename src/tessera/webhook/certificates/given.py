"""A certificate that a webhook was given in files, seen from outside: the Secret that its Deployment mounts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.webhook.certificates.store import decode

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


class _VolumeSecret(msgspec.Struct, rename="camel"):
    secret_name: str = ""


class _Volume(msgspec.Struct):
    name: str
    secret: _VolumeSecret | None = None


class _Mount(msgspec.Struct, rename="camel"):
    name: str
    mount_path: str


class _Container(msgspec.Struct, rename="camel"):
    args: list[str] | None = None
    volume_mounts: list[_Mount] | None = None


class _PodSpec(msgspec.Struct):
    containers: list[_Container]
    volumes: list[_Volume] | None = None


class _Template(msgspec.Struct):
    spec: _PodSpec


class _DeploymentSpec(msgspec.Struct):
    template: _Template


class _Deployment(msgspec.Struct):
    spec: _DeploymentSpec


class _Secret(msgspec.Struct):
    data: dict[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class GivenCertificate:
    """A certificate that a Deployment's webhook has from a file (`--tls-cert`)."""

    file: str
    secret: str = ""  # that is mounted there; empty: none is
    chain: bytes = b""  # what is in it, PEM

    def certificates(self) -> "list[Certificate]":
        """The chain, the webhook's own first; empty when it is none."""
        return _certificates(self.chain)

    def trusted_by(self, bundle: bytes) -> bool:
        """Whether a bundle holds one of the chain's certificates, or the issuer of one."""
        trusted = _certificates(bundle)
        return any(one == issuer or _issued(one, issuer) for one in self.certificates() for issuer in trusted)


async def read_given(client: Client, namespace: str, deployment: str) -> GivenCertificate | None:
    """The certificate that a webhook's Deployment takes from a file; None if it does not, or cannot be seen."""
    try:
        raw = await client.get(path_of("apps/v1", "deployments", namespace=namespace, name=deployment))
    except ApiError:
        return None
    pod = decode(raw, _Deployment).spec.template.spec
    for container in pod.containers:
        for argument in container.args or ():
            option, _, file = argument.partition("=")
            if option == "--tls-cert" and file:
                return await _mounted(client, namespace, pod, container, file)
    return None


async def _mounted(
    client: Client, namespace: str, pod: _PodSpec, container: _Container, file: str
) -> GivenCertificate:
    folder, _, key = file.rpartition("/")
    mounts = {one.name for one in container.volume_mounts or () if one.mount_path.rstrip("/") == folder}
    for volume in pod.volumes or ():
        if volume.name in mounts and volume.secret is not None:
            name = volume.secret.secret_name
            return GivenCertificate(
                file, f"Secret {namespace}/{name}", (await _data(client, namespace, name)).get(key, b"")
            )
    return GivenCertificate(file)


async def _data(client: Client, namespace: str, name: str) -> dict[str, bytes]:
    try:
        raw = await client.get(path_of("v1", "secrets", namespace=namespace, name=name))
    except ApiError as error:
        if error.is_not_found:
            return {}
        raise
    return decode(raw, _Secret).data or {}


def _certificates(pem: bytes) -> "list[Certificate]":
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _issued(one: "Certificate", issuer: "Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        one.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
