"""Credentials from a program: the `exec` section of a kubeconfig.

The program gets what it may want to know in `KUBERNETES_EXEC_INFO` and prints an ExecCredential; see
`client.authentication.k8s.io`. It is run when the last answer has expired or was refused, by one caller at a time.
"""

import asyncio
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec

from tessera.kube.access.cluster import Credential, Credentials, token_text
from tessera.kube.errors import NOT_JSON, CredentialsFailed, InvalidKubeconfig

_API_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES: Final = ("Never", "IfAvailable", "Always")

_LEEWAY: Final = 10.0  # seconds before its end at which a credential is no longer used
_TIMEOUT: Final = 60.0  # seconds for a plugin that asks no person
_INTERACTIVE_TIMEOUT: Final = 600.0  # and for one that does
_MAX_OUTPUT: Final = 1024 * 1024  # bytes; a token and a certificate with its chain are a few KiB


class _EnvIn(msgspec.Struct):
    name: str
    value: str = ""


class ExecIn(msgspec.Struct, rename="camel"):
    """The `exec` part of a user: what to run, and how."""

    command: str = ""
    api_version: str = ""
    args: list[str] = []
    env: list[_EnvIn] = []
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""

    def check(self, where: str) -> None:
        """`InvalidKubeconfig` where it cannot be run; `where` names it in errors."""
        modes = _INTERACTIVE_MODES if self.api_version != _API_VERSIONS[1] else ("", *_INTERACTIVE_MODES)
        if not self.command:
            raise InvalidKubeconfig(f"{where}.command: missing")
        if self.api_version not in _API_VERSIONS:
            expected, got = " or ".join(_API_VERSIONS), self.api_version or "nothing"
            raise InvalidKubeconfig(f"{where}.apiVersion: expected {expected}, got {got}")
        if self.interactive_mode not in modes:
            expected, got = ", ".join(_INTERACTIVE_MODES), self.interactive_mode or "nothing"
            raise InvalidKubeconfig(f"{where}.interactiveMode: expected {expected}, got {got}")


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
    """Credentials that a plugin hands out.

    `base` adds what the kubeconfig itself has; `cluster` is what the plugin gets to know of the cluster, when it asked for that.
    """

    def __init__(
        self, plugin: ExecIn, base: Credentials, cluster: dict[str, Any] | None, *, where: str
    ) -> None:
        self._plugin = plugin
        self._base = base
        self._cluster = cluster
        self._where = where  # for errors
        self._lock = asyncio.Lock()
        self._last: Credential | None = None
        self._expires = math.inf  # Unix time

    async def current(self) -> Credential:
        """The last credential while it is good, else a new one."""
        async with self._lock:
            if self._last is None or time.time() >= self._expires - _LEEWAY:
                await self._renew()
            return await self._merged()

    async def renewed(self, refused: Credential) -> Credential | None:
        """A new credential, unless another call has brought one since."""
        async with self._lock:
            if self._last is None or await self._merged() == refused:
                await self._renew()
            credential = await self._merged()
            return credential if credential != refused else None

    async def _merged(self) -> Credential:
        base, last = await self._base.current(), self._last or Credential()
        if last.certificate is None:
            return replace(base, token=last.token or base.token)
        return replace(last, token=last.token or base.token)

    async def _renew(self) -> None:
        output = await self._run()
        wanted = self._plugin.api_version
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except NOT_JSON as error:
            raise self._failed(f"did not print an ExecCredential: {error}") from error
        if (answer.kind, answer.api_version) != ("ExecCredential", wanted):
            raise self._failed(
                f"printed {answer.kind or 'something'} of {answer.api_version or 'no apiVersion'}, "
                f"expected ExecCredential of {wanted}"
            )
        status = answer.status or _ExecStatus()
        certificate, key = status.client_certificate_data, status.client_key_data
        if (certificate is None) != (key is None):
            raise self._failed("printed a certificate without its key, or a key without its certificate")
        if not status.token and not certificate:
            raise self._failed("printed neither a token nor a client certificate")
        where = f"{self._where}: {self._plugin.command}: token"
        self._last = Credential(
            token_text(status.token, where) if status.token else None,
            certificate.encode() if certificate is not None else None,
            key.encode() if key is not None else None,
        )
        expires = status.expiration_timestamp
        self._expires = expires.timestamp() if expires else math.inf

    async def _run(self) -> bytes:
        plugin = self._plugin
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if plugin.interactive_mode == "Always" and not terminal:
            raise self._failed("needs a terminal (interactiveMode: Always), and there is none")
        talks = plugin.interactive_mode != "Never" and terminal
        info: dict[str, Any] = {"apiVersion": plugin.api_version, "kind": "ExecCredential"}
        info["spec"] = {"interactive": talks} | ({"cluster": self._cluster} if self._cluster else {})
        environment = dict(os.environ) | {one.name: one.value for one in plugin.env}
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        try:
            transport, output = await asyncio.get_running_loop().subprocess_exec(
                _Output,
                plugin.command,
                *plugin.args,
                stdin=None if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None,
                env=environment,
            )
        except OSError as error:
            hint = f"; {' '.join(plugin.install_hint.split())}" if plugin.install_hint else ""
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
        return CredentialsFailed(f"{self._where}: the plugin {self._plugin.command} {what}")
