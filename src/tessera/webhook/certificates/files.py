"""A certificate and key in files, which an operator or cert-manager renews.

`CertificateFiles` serves and follows them. `read_given` finds them from outside, for `tessera certs show`: in the
Secret that the webhook's Deployment mounts.
"""

import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.core.errors import TesseraError
from tessera.kube.clock import SYSTEM_CLOCK, Clock, Once
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.kubernetes.webhook import Secret
from tessera.serving.metrics import Family
from tessera.serving.reload import Followed
from tessera.webhook.certificates.served import (
    ServedCertificate,
    certificate_metrics,
    served_metrics,
    server_context,
)
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.certificates.store import read_object

_REPEAT_SECONDS: Final = 600.0  # that a certificate has ended is reported again this often


class CertificateFiles:
    """Serves the pair in two files, and a new pair as soon as it is whole and good."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        served: ServedCertificate,
        signer: Signer,
        report: Callable[[str, str | None], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Read the pair for the first time; here a bad one is the caller's error."""
        self._served = served
        self._signer = signer
        self._report = report
        self._clock = clock
        self._chain = b""
        self._inspected = b""
        self._validity: tuple[float, float] | None = None
        self._once = Once(clock.now, _REPEAT_SECONDS)
        self.followed: Followed[tuple[ssl.SSLContext, bytes]] = Followed(
            "certificate", [certificate, key], _read, self._use, report
        )
        self.followed.load()

    async def run(self, interval: float = 2.0) -> None:
        while True:
            await self.inspect()
            await self._clock.sleep(interval)
            await self.followed.check()

    async def inspect(self) -> None:
        """Find out from when until when the served certificate is valid, and report if it is not valid now."""
        if self._inspected != self._chain:
            self._inspected = self._chain
            try:
                self._validity = await self._signer.validity(self._chain)
            except TesseraError as error:
                self._validity = None
                self._report("the certificate's end date is not known", str(error))
        problem = self.not_ready()
        if problem is None:
            self._once.end()
        elif self._once.begin(problem):
            self._report("API servers refuse the certificate", problem)

    def not_ready(self) -> str | None:
        """Why API servers refuse what is served, as far as its dates say; or None."""
        begin, end = self._validity or (0.0, float("inf"))
        now = self._clock.wall()
        if now >= end:
            return f"the serving certificate expired on {_date(end)}: renew the files"
        if now < begin:
            return f"the serving certificate is not valid before {_date(begin)}: is a clock wrong?"
        return None

    def metrics(self) -> Iterable[Family]:
        ends = {"serving": self._validity[1] if self._validity else None}
        yield from certificate_metrics(ends, self.followed.bad)
        yield from served_metrics(self.followed.good, self.not_ready() is None)

    def _use(self, pair: tuple[ssl.SSLContext, bytes]) -> None:
        context, self._chain = pair
        self._served.change(context)


def _read(certificate: bytes, key: bytes) -> tuple[ssl.SSLContext, bytes]:
    return server_context(certificate, key), certificate


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


@dataclass(frozen=True, slots=True)
class GivenCertificate:
    """A certificate that a Deployment's webhook has from a file (`--tls-cert`)."""

    file: str
    secret: str = ""  # that is mounted there; empty: none is
    chain: bytes = b""  # what is in it, PEM


async def read_given(client: Client, namespace: str, deployment: str) -> GivenCertificate | None:
    """The certificate that a webhook's Deployment takes from a file; None if it does not, or cannot be seen."""
    from tessera.protocol.kubernetes.controllers import Workload  # of no use to the webhook's process

    path = path_of("apps/v1", "deployments", namespace=namespace, name=deployment)
    try:
        found = await read_object(client, path, Workload)
    except ApiError:
        found = None
    template = found.spec.template if found else None
    if template is None or not (file := template.option("--tls-cert")):
        return None
    volume, key = template.volume_of(file)
    if volume.secret is None:
        return GivenCertificate(file)
    name = volume.secret.secret_name
    secret = await read_object(client, path_of("v1", "secrets", namespace=namespace, name=name), Secret)
    data = (secret.data if secret else None) or {}
    return GivenCertificate(file, f"Secret {namespace}/{name}", data.get(key, b""))
