"""Credentials from a program: the `exec` section of a kubeconfig.

The program gets what it may want to know in `KUBERNETES_EXEC_INFO` and prints an ExecCredential; see
`client.authentication.k8s.io`. It is run when the last answer has expired or was refused, by one caller at a time.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from tessera.kube.access.cluster import Credential, Credentials
from tessera.kube.access.credentials import token_text
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import NOT_JSON, CredentialsFailed

API_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
INTERACTIVE_MODES: Final = ("Never", "IfAvailable", "Always")

_LEEWAY: Final = 10.0  # seconds before its end at which a credential is no longer used
_TIMEOUT: Final = 60.0  # seconds for a plugin that asks no person
_INTERACTIVE_TIMEOUT: Final = 600.0  # and for one that does
_MAX_OUTPUT: Final = 1024 * 1024  # bytes; a token and a certificate with its chain are a few KiB


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """What to run, and how."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    interactive: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"
    install_hint: str = ""
    cluster: dict[str, Any] | None = None  # what the plugin is told of the cluster, when it asked for that
    where: str = field(default="", compare=False)  # the field in the file, for errors


class _ExecStatus(msgspec.Struct, rename="camel"):
    expiration_timestamp: datetime | None = None
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class _Output(asyncio.SubprocessProtocol):
    """What a plugin prints, up to the bound; the plugin's standard error is ours."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.enough = asyncio.Event()  # there is nothing more to wait for
        self.ended = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.text += data
        if len(self.text) > _MAX_OUTPUT:
            self.enough.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.enough.set()
        self.ended.set()


class ExecCredentials:
    """Credentials that a plugin hands out; `base` adds what the kubeconfig itself has."""

    def __init__(self, spec: ExecSpec, base: Credentials, clock: Clock = SYSTEM_CLOCK) -> None:
        self._spec = spec
        self._base = base
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: Credential | None = None
        self._expires: float | None = None

    async def current(self) -> Credential:
        """The last credential while it is good, else a new one."""
        async with self._lock:
            if self._last is None or self._is_over():
                await self._renew()
            return await self._merged()

    async def renewed(self, refused: Credential) -> Credential | None:
        """A new credential, unless another call has brought one since."""
        async with self._lock:
            if self._last is None or await self._merged() == refused:
                await self._renew()
            credential = await self._merged()
            return credential if credential != refused else None

    def _is_over(self) -> bool:
        return self._expires is not None and self._clock.wall() >= self._expires - _LEEWAY

    async def _merged(self) -> Credential:
        base, last = await self._base.current(), self._last or Credential()
        if last.certificate is None:
            return replace(base, token=last.token or base.token)
        return replace(last, token=last.token or base.token)

    async def _renew(self) -> None:
        output = await self._run()
        spec = self._spec
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except NOT_JSON as error:
            raise self._failed(f"did not print an ExecCredential: {error}") from error
        if (answer.kind, answer.api_version) != ("ExecCredential", spec.api_version):
            raise self._failed(
                f"printed {answer.kind or 'something'} of {answer.api_version or 'no apiVersion'}, "
                f"expected ExecCredential of {spec.api_version}"
            )
        status = answer.status or _ExecStatus()
        certificate, key = status.client_certificate_data, status.client_key_data
        if (certificate is None) != (key is None):
            raise self._failed("printed a certificate without its key, or a key without its certificate")
        if not status.token and not certificate:
            raise self._failed("printed neither a token nor a client certificate")
        self._last = Credential(
            token_text(status.token, f"{spec.where}: {spec.command}: token") if status.token else None,
            certificate.encode() if certificate is not None else None,
            key.encode() if key is not None else None,
        )
        self._expires = status.expiration_timestamp.timestamp() if status.expiration_timestamp else None

    async def _run(self) -> bytes:
        spec = self._spec
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if spec.interactive == "Always" and not terminal:
            raise self._failed("needs a terminal (interactiveMode: Always), and there is none")
        talks = spec.interactive != "Never" and terminal
        info: dict[str, Any] = {"apiVersion": spec.api_version, "kind": "ExecCredential"}
        info["spec"] = {"interactive": talks} | ({"cluster": spec.cluster} if spec.cluster else {})
        environment = dict(os.environ) | dict(spec.env)
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        try:
            transport, output = await asyncio.get_running_loop().subprocess_exec(
                _Output,
                spec.command,
                *spec.args,
                stdin=None if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None,
                env=environment,
            )
        except OSError as error:
            hint = f"; {' '.join(spec.install_hint.split())}" if spec.install_hint else ""
            raise self._failed(f"cannot be run: {error.strerror or error}{hint}") from error
        timeout = _INTERACTIVE_TIMEOUT if talks else _TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                await output.enough.wait()
        except TimeoutError as error:
            raise self._failed(f"did not end within {timeout:g} s") from error
        finally:
            transport.close()  # kills it where it still runs
            await output.ended.wait()
        if len(output.text) > _MAX_OUTPUT:
            raise self._failed(f"printed more than {_MAX_OUTPUT // 2**20} MiB")
        if code := transport.get_returncode():
            raise self._failed(f"ended with exit code {code}")
        return bytes(output.text)

    def _failed(self, what: str) -> CredentialsFailed:
        return CredentialsFailed(f"{self._spec.where}: the plugin {self._spec.command} {what}")
