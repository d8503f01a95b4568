"""The webhook's own certificates: looked after by every replica for itself.

Look at the Secret and the webhook configuration, ask `rotation.plan` what to do next, do it, look again. Everything
that can be decided is decided there; here is the doing, and what becomes of failures: they are counted and told, the
certificate in use goes on being served, and the next look comes soon.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from tessera.core.errors import TesseraError
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.serving.logs import Log
from tessera.serving.metrics import Family, counter, gauge
from tessera.webhook.certificates import rotation
from tessera.webhook.certificates.authorities import (
    authorities_in,
    bundle_of,
    names_in,
    read_authorities,
    write_authorities,
)
from tessera.webhook.certificates.rotation import (
    Authorities,
    Leaf,
    Move,
    Policy,
    Sightings,
    Situation,
    not_ready,
    plan,
)
from tessera.webhook.certificates.served import ServedCertificate, server_context
from tessera.webhook.certificates.signer import Signer

_SOON_SECONDS: Final = 1.0  # until the next look while something is missing
_AGAIN_SECONDS: Final = 0.2  # until the next try when another replica was faster
_MOST_MISSED: Final = 4  # looks; with more than that missing, this replica was not watching
_MOST_STEPS: Final = 20  # in a row; a rotation takes five
_REPEAT_SECONDS: Final = 600.0  # an error that stays the same is told again this often


class Conflict(TesseraError):
    """Another replica was faster: look again."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """The Secret as it was read."""

    version: str
    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredBundles:
    """The webhook configuration as it was read: a bundle per webhook."""

    version: str
    bundles: Mapping[str, bytes]


class Store(Protocol):
    """The two objects that replicas share. Writing raises `Conflict` when the version is not the last any more."""

    @property
    def secret_name(self) -> str:
        """The Secret as messages name it."""
        ...

    async def read_bundles(self) -> StoredBundles | None:
        """The webhook configuration, if there is one."""
        ...

    async def read_secret(self) -> StoredSecret | None:
        """The Secret, if there is one."""
        ...

    async def create_secret(self, data: Mapping[str, bytes | None]) -> None:
        """Be the first."""
        ...

    async def write_secret(self, version: str, data: Mapping[str, bytes | None]) -> None:
        """Change these keys; None removes one."""
        ...

    async def publish(self, found: StoredBundles, bundle: bytes) -> None:
        """Put the bundle into every webhook of the configuration."""
        ...


class CertificateManager:
    """Keeps a certificate served that API servers trust."""

    def __init__(
        self,
        store: Store,
        signer: Signer,
        served: ServedCertificate,
        names: Sequence[str],
        log: Log,
        policy: Policy = Policy(),  # noqa: B008 # frozen
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.signed = 0
        self.errors = 0
        self._store = store
        self._signer = signer
        self._served = served
        self._names = tuple(names)
        self._log = log
        self._policy = policy
        self._clock = clock
        self._sightings = Sightings(_MOST_MISSED * policy.look)
        self._leaf: Leaf | None = None
        self._known: Situation | None = None
        self._told: tuple[str, float] = ("", 0.0)
        self._failures = 0  # in a row

    def not_ready(self) -> str | None:
        """Why an API server might refuse what is served now, or None."""
        if self._known is None:
            return "the API server has not been asked yet"
        now = replace(self._known, now=self._clock.wall(), leaf=self._leaf)
        return not_ready(now, self._policy, self._sightings.found)

    async def run(self) -> None:
        """Look after the certificates until cancelled."""
        while True:
            wait = await self.settle()
            await self._clock.sleep(wait * random.uniform(0.8, 1.2))  # noqa: S311 # replicas need not look together

    async def settle(self) -> float:
        """Do all there is to do now; answers how long until the next look."""
        try:
            for _ in range(_MOST_STEPS):
                if await self.look() is Move.REST:
                    break
        except Conflict:
            return min(_AGAIN_SECONDS, self._policy.look)
        except TesseraError as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001 # whatever it is, the certificate in use goes on being served
            return self._failed(f"unexpected: {error!r}")
        self._told = ("", 0.0)
        self._failures = 0
        return min(_SOON_SECONDS, self._policy.look) if self.not_ready() else self._policy.look

    async def look(self) -> Move:
        """Look, and take one step."""
        # The bundle first: a Secret that is read after it knows whatever the bundle had been made from.
        asked = self._clock.now()
        found = await self._store.read_bundles()
        names = None if found is None else tuple(names_in(pem) for pem in found.bundles.values())
        seen = self._sightings.look(names, asked, self._clock.now())
        read_at = self._clock.wall()
        secret = await self._store.read_secret()
        authorities = read_authorities(secret.data, self._store.secret_name) if secret else None
        at = Situation(self._clock.wall(), authorities, names, self._leaf, seen)
        self._known = at
        move = plan(at, self._policy)
        if move is Move.SIGN and authorities is not None:
            await self._sign(authorities, read_at)
        else:
            await self._act(move, at, secret, found)
        if move is not Move.REST:
            self._log.info("certificates", step=move.name.lower(), what=move.value)
        return move

    async def _act(
        self, move: Move, at: Situation, secret: StoredSecret | None, found: StoredBundles | None
    ) -> None:
        authorities = at.authorities
        if move in (Move.ESTABLISH, Move.INTRODUCE):
            await self._write(await self._with_fresh(move, authorities, at.now), secret)
        elif authorities is None or move is Move.REST:
            return
        elif move is Move.PUBLISH:
            assert found is not None  # noqa: S101 # there is no bundle to mend without a configuration
            await self._store.publish(found, bundle_of(authorities.trusted(at.now, self._policy)))
        else:
            await self._write(_moved(move, authorities, at, found), secret)

    async def _with_fresh(self, move: Move, authorities: Authorities | None, now: float) -> Authorities:
        fresh = await self._signer.authority(now - self._policy.skew, now + self._policy.authority_life)
        if move is Move.INTRODUCE and authorities is not None:
            return rotation.introduce(authorities, fresh, now)
        return rotation.establish(authorities, fresh, now)

    async def _write(self, authorities: Authorities, secret: StoredSecret | None) -> None:
        if secret is None:
            await self._store.create_secret(write_authorities(authorities))
        else:
            await self._store.write_secret(secret.version, write_authorities(authorities))

    async def _sign(self, authorities: Authorities, read_at: float) -> None:
        # From the authority's beginning, so that a clock that runs ahead makes no certificate of the future;
        # until a time that counts from reading the Secret, as `rotation` explains.
        begin = authorities.current.not_before
        end = float(
            int(min(read_at + self._policy.leaf_life, authorities.current.not_after))
        )  # whole seconds
        made = await self._signer.leaf(authorities.current, self._names, begin, end)
        self._served.change(server_context(made.certificate, made.key))
        self._leaf = Leaf(authorities.current.name, read_at, begin, end)
        self.signed += 1

    def _failed(self, message: str) -> float:
        """Count and tell; answers how long until the next try, longer each time."""
        self.errors += 1
        self._failures += 1
        text, when = self._told
        if message != text or self._clock.now() - when >= _REPEAT_SECONDS:
            self._told = (message, self._clock.now())
            self._log.error("certificates: trying again soon", error=message)
        return min(_SOON_SECONDS * 2.0 ** min(self._failures - 1, 10), self._policy.look)

    def metrics(self) -> list[Family]:
        """What there is to see."""
        authorities = self._known.authorities if self._known else None
        ends: list[tuple[str, Mapping[str, str], float]] = []
        if self._leaf:
            ends.append(("", {"certificate": "serving"}, self._leaf.not_after))
        if authorities:
            ends.append(("", {"certificate": "authority"}, authorities.current.not_after))
        return [
            expiry_family(ends),
            counter("gpu_webhook_certificate_renewals_total", "Certificates put into service.", self.signed),
            counter("gpu_webhook_certificate_errors_total", "Attempts to renew or publish that failed.", self.errors),
            gauge("gpu_webhook_certificate_trusted", "1 while the published bundle trusts what is served.",
                  int(self.not_ready() is None)),
        ]  # fmt: skip


def expiry_family(ends: Sequence[tuple[str, Mapping[str, str], float]]) -> Family:
    """When certificates end."""
    return Family(
        "gpu_webhook_certificate_expiry_timestamp_seconds",
        "gauge",
        "When a certificate ends, Unix time.",
        ends,
    )


def _moved(move: Move, authorities: Authorities, at: Situation, found: StoredBundles | None) -> Authorities:
    if move is Move.PROMOTE:
        return rotation.promote(authorities, at.now)
    if move is Move.FORGET:
        return rotation.forget(authorities)
    published = b"\n".join(found.bundles.values()) if found else b""
    strays = rotation.strays(at)
    return rotation.adopt(
        authorities, [one for one in authorities_in(published) if one.name in strays], at.now
    )


def names_of_service(service: str, namespace: str) -> list[str]:
    """The names under which a Service is called; the API server uses the first."""
    full = f"{service}.{namespace}.svc"
    return [full, f"{full}.cluster.local", f"{service}.{namespace}", service]
