"""A certificate and key in files, which an operator or cert-manager looks after."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from tessera.core.errors import TesseraError
from tessera.serving.metrics import Family, counter
from tessera.webhook.certificates.manager import expiry_family
from tessera.webhook.certificates.served import ServedCertificate, server_context
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.reload import Followed


class CertificateFiles:
    """Serves the pair in two files, and a new pair as soon as it is whole and good."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        served: ServedCertificate,
        signer: Signer,
        report: Callable[[str, str | None], None],
    ) -> None:
        self._served = served
        self._signer = signer
        self._report = report
        self._chain = b""
        self._inspected = b""
        self._not_after: float | None = None
        self.followed: Followed[tuple[ssl.SSLContext, bytes]] = Followed(
            "certificate", [certificate, key], _read, self._use, report
        )

    def load(self) -> None:
        """Read the pair for the first time; a bad one is the caller's error."""
        self.followed.load()

    async def run(self, interval: float = 2.0) -> None:
        """Follow the files until cancelled."""
        while True:
            await self.inspect()
            await asyncio.sleep(interval)
            await self.followed.check()

    async def inspect(self) -> None:
        """Find out when the certificate that is served ends."""
        if self._inspected == self._chain:
            return
        self._inspected = self._chain
        try:
            self._not_after = await self._signer.expiry(self._chain)
        except TesseraError as error:
            self._not_after = None
            self._report("when the certificate ends is not known", str(error))

    def metrics(self) -> Iterable[Family]:
        """What there is to see."""
        known = self._not_after
        yield expiry_family([] if known is None else [("", {"certificate": "serving"}, known)])
        yield counter(
            "gpu_webhook_certificate_renewals_total",
            "Certificates put into service.",
            self.followed.reloads.good,
        )
        yield counter(
            "gpu_webhook_certificate_errors_total",
            "Certificates that were refused.",
            self.followed.reloads.bad,
        )

    def _use(self, pair: tuple[ssl.SSLContext, bytes]) -> None:
        context, self._chain = pair
        self._served.change(context)


def _read(certificate: bytes, key: bytes) -> tuple[ssl.SSLContext, bytes]:
    return server_context(certificate, key), certificate
