"""A certificate and key in files, which an operator or cert-manager looks after."""

import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tessera.core.errors import TesseraError
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.serving.metrics import Family, counter
from tessera.webhook.certificates.manager import expiry_family, valid_family
from tessera.webhook.certificates.served import ServedCertificate, server_context
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.reload import Followed

_REPEAT_SECONDS: Final = 600.0  # that a certificate has ended is told again this often


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
        self._served = served
        self._signer = signer
        self._report = report
        self._clock = clock
        self._chain = b""
        self._inspected = b""
        self._validity: tuple[float, float] | None = None
        self._told: tuple[str, float] = ("", 0.0)
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
            await self._clock.sleep(interval)
            await self.followed.check()

    async def inspect(self) -> None:
        """Find out from when until when the certificate that is served is valid, and tell if it is not valid now."""
        if self._inspected != self._chain:
            self._inspected = self._chain
            try:
                self._validity = await self._signer.validity(self._chain)
            except TesseraError as error:
                self._validity = None
                self._report("when the certificate ends is not known", str(error))
        problem = self.not_ready() or ""
        text, when = self._told
        if problem != text or (problem and self._clock.now() - when >= _REPEAT_SECONDS):
            self._told = (problem, self._clock.now())
            if problem:
                self._report("API servers refuse the certificate", problem)

    def not_ready(self) -> str | None:
        """Why API servers refuse what is served, as far as its dates say; or None."""
        begin, end = self._validity or (0.0, float("inf"))
        now = self._clock.wall()
        if now >= end:
            return f"the certificate that is served ended on {_date(end)}: renew the files"
        if now < begin:
            return f"the certificate that is served is valid from {_date(begin)} on only: is a clock wrong?"
        return None

    def metrics(self) -> Iterable[Family]:
        """What there is to see."""
        known = self._validity
        yield expiry_family([] if known is None else [("", {"certificate": "serving"}, known[1])])
        yield valid_family(self.not_ready() is None)
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


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
