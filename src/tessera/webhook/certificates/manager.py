"""The webhook's own certificates: kept by every replica for itself, or by a process that has the right to.

Read the Secret and the webhook configuration, ask `rotation.plan` for the next step, take it, read again. Everything
that can be decided is decided there; here is the doing, and what becomes of failures: they are counted and logged, the
certificate in use goes on being served, and the next reconciliation comes soon.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tessera.core.errors import TesseraError
from tessera.kube.clock import CONFLICTS, SYSTEM_CLOCK, Backoff, Clock, Once, Retries, offset_between
from tessera.protocol.authority_secret import set_aside
from tessera.serving.logs import Log
from tessera.serving.metrics import Family, gauge, labelled
from tessera.webhook.certificates import rotation
from tessera.webhook.certificates.authorities import (
    InvalidAuthorities,
    authorities_in,
    bundle_of,
    names_in,
    read_authorities,
    write_authorities,
)
from tessera.webhook.certificates.rotation import (
    Authorities,
    Duty,
    Leaf,
    RotationPolicy,
    RotationStep,
    Sightings,
    Situation,
)
from tessera.webhook.certificates.served import (
    ServedCertificate,
    certificate_metrics,
    served_metrics,
    server_context,
)
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.certificates.store import (
    Conflict,
    KubeStore,
    StoredBundles,
    StoredSecret,
    WrongClock,
    check_clock,
)

_SOON_SECONDS: Final = 1.0  # until the next reconciliation while something is missing
_AGAIN_SECONDS: Final = 0.2  # until the next try when another replica was faster, doubling
_WRITE: Final = "write"  # what waits after a conflict: reading goes on
_EARLIEST, _LATEST = 0.8, 1.2  # times a wait: replicas need not reconcile together
_MOST_MISSED: Final = 4  # reconciliations; with more than that missing, this replica was not watching
_MOST_STEPS: Final = 20  # in a row; a rotation takes five
_REPEAT_SECONDS: Final = 600.0  # an error that stays the same is logged again this often


class CertificateManager:
    """Keeps a certificate served that API servers trust; without `served`, only what other processes sign with."""

    def __init__(
        self,
        store: KubeStore,
        signer: Signer,
        served: ServedCertificate | None,
        names: Sequence[str],
        log: Log,
        policy: RotationPolicy = RotationPolicy(),  # noqa: B008 # frozen
        clock: Clock = SYSTEM_CLOCK,
        *,
        keeps: bool = True,  # the Secret and the bundle; else another process does
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
        self._duties = (Duty.KEEP if keeps else Duty(0)) | (Duty.SERVE if served else Duty(0))
        self._longest_gap = _MOST_MISSED * policy.interval
        self._sightings = Sightings(self._longest_gap)
        self._leaf: Leaf | None = None
        self._known: Situation | None = None
        self._known_at = 0.0  # when the bundle was last seen, by a clock that never jumps
        self._offset: float | None = None  # by how much the API server's clock is ahead
        self._wrong_clock: str | None = None
        self._damaged: tuple[str, float] | None = None  # the Secret's version, and since when
        self._once = Once(clock.now, _REPEAT_SECONDS)
        self._conflicts = Retries(clock.now, _AGAIN_SECONDS, CONFLICTS[1])
        self._backoff = Backoff(_SOON_SECONDS, policy.interval, jitter=0.0)

    def not_ready(self) -> str | None:
        """Why an API server might refuse what is served now, or None."""
        if self._wrong_clock:
            return self._wrong_clock
        if self._known is None:
            return self._once.text() or "the API server has not answered yet"
        if Duty.SERVE not in self._duties:
            return None
        if self._leaf is None and self._known.authorities is None and Duty.KEEP not in self._duties:
            return "there is no certificate authority yet: `tessera certs run` makes it"
        now = replace(self._known, now=self._clock.wall(), leaf=self._leaf)
        return rotation.not_ready(now, self._policy, self._sightings.found)

    def trusted(self) -> bool:
        """Whether the bundle trusts what is served, seen within the last minute: a bundle unseen proves nothing."""
        return self.not_ready() is None and self._clock.now() - self._known_at <= self._longest_gap

    async def run(self) -> None:
        while True:
            wait = await self.settle()
            await self._clock.sleep(wait * random.uniform(_EARLIEST, _LATEST))  # noqa: S311

    async def settle(self) -> float:
        """Do all there is to do now; seconds until the next reconciliation."""
        try:
            for _ in range(_MOST_STEPS):
                if await self.step() is RotationStep.REST:
                    break
        except Conflict:
            self._conflicts.put_off(_WRITE)
            return self._rest()
        except TesseraError as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001 # whatever it is, the certificate in use goes on being served
            return self._failed(f"unexpected: {error!r}")
        self._once.end()
        self._backoff.reset()
        return self._rest()

    def _rest(self) -> float:
        """Seconds until the next reconciliation. A write that waits after a conflict is due by then, however the wait is spread."""
        write = self._conflicts.next()
        if write is not None:
            return min(write / _EARLIEST, self._policy.interval)
        return min(_SOON_SECONDS, self._policy.interval) if self.not_ready() else self._policy.interval

    async def step(self) -> RotationStep:
        """Read the bundle and the Secret, and take one step."""
        # The bundle first: a Secret that is read after it knows whatever the bundle had been made from.
        asked, asked_wall = self._clock.now(), self._clock.wall()
        found = await self._store.read_bundles()
        names = None if found is None else tuple(names_in(pem) for pem in found.bundles.values())
        seen = self._sightings.observe(names, asked, self._clock.now())
        last = self._known.authorities if self._known else None
        self._known = Situation(self._clock.wall(), last, names, self._leaf, seen)
        self._known_at = asked
        read_at = self._clock.wall()
        secret = await self._store.read_secret()
        self._compare_clocks(asked_wall)
        try:
            authorities = read_authorities(secret.data, self._store.secret_name) if secret else None
        except InvalidAuthorities as error:
            assert secret is not None  # noqa: S101 # it was read
            return await self._set_aside(secret, error)
        self._damaged = None
        at = self._known = Situation(self._clock.wall(), authorities, names, self._leaf, seen)
        move = rotation.plan(at, self._policy, self._duties)
        if move is RotationStep.REST:
            return move
        if move is RotationStep.SIGN:
            await self._sign(at, read_at)
        elif not self._conflicts.is_due(_WRITE):
            return RotationStep.REST
        elif move is RotationStep.PUBLISH:
            await self._publish(at, found)
            self._conflicts.forget(_WRITE)
        else:
            changed = write_authorities(await self._changed(move, at, found))
            if secret is None:
                await self._store.create_secret(changed)
            else:
                await self._store.write_secret(secret.version, changed)
            self._conflicts.forget(_WRITE)
        self._log.info("certificates", step=move.name.lower(), what=move.value)
        return move

    def _compare_clocks(self, asked: float) -> None:
        """Nothing is decided by a clock that is wrong."""
        date = self._store.server_date()
        self._offset = None if date is None else offset_between(date, asked, self._clock.wall())
        try:
            check_clock(self._offset or 0.0, self._policy)
        except WrongClock as error:
            self._wrong_clock = str(error)
            raise
        self._wrong_clock = None

    async def _set_aside(self, secret: StoredSecret, error: InvalidAuthorities) -> RotationStep:
        """Make room for a new authority once the Secret has been damaged for a while; what is in it is kept."""
        now = self._clock.now()
        if self._damaged is None or self._damaged[0] != secret.version:
            self._damaged = (secret.version, now)
        changes = set_aside(secret.data)
        # not at once: a person who repairs it by hand may need two steps
        waited = now - self._damaged[1] >= self._policy.settle
        may_write = Duty.KEEP in self._duties and self._conflicts.is_due(_WRITE)
        if changes is None or not waited or not may_write:
            raise error
        await self._store.write_secret(secret.version, changes)
        self._conflicts.forget(_WRITE)
        kept = ", ".join(name for name, value in changes.items() if value is not None)
        self._log.error("certificates: a damaged authority was set aside", error=str(error), kept=kept)
        return RotationStep.SET_ASIDE

    async def _publish(self, at: Situation, found: StoredBundles | None) -> None:
        assert found is not None  # noqa: S101 # there is no bundle to repair without a configuration
        assert at.authorities is not None  # noqa: S101 # nor without an authority
        await self._store.publish(found, bundle_of(at.authorities.trusted(at.now, self._policy)))

    async def _changed(self, move: RotationStep, at: Situation, found: StoredBundles | None) -> Authorities:
        """What a move makes of the authorities."""
        authorities, now = at.authorities, at.now
        if move in (RotationStep.ESTABLISH, RotationStep.INTRODUCE):
            fresh = await self._signer.authority(now - self._policy.skew, now + self._policy.authority_life)
            if move is RotationStep.ESTABLISH or authorities is None:
                return rotation.establish(authorities, fresh, now)
            return rotation.introduce(authorities, fresh, now)
        assert authorities is not None  # noqa: S101 # all other moves are about some
        if move is RotationStep.PROMOTE:
            return rotation.promote(authorities, now)
        if move is RotationStep.FORGET:
            return rotation.forget(authorities)
        published = authorities_in(b"\n".join(found.bundles.values()) if found else b"")
        strays = rotation.strays(at)
        return rotation.adopt(authorities, [one for one in published if one.name in strays], now)

    async def _sign(self, at: Situation, read_at: float) -> None:
        assert self._served is not None  # noqa: S101 # else there is no such duty
        assert at.authorities is not None  # noqa: S101 # else there is nothing to sign with
        authority = at.authorities.current
        # From the authority's beginning, so that a clock that runs ahead makes no certificate of the future;
        # until a time (in whole seconds) that counts from reading the Secret, as `rotation` explains.
        begin = authority.not_before
        end = float(int(min(read_at + self._policy.leaf_life, authority.not_after)))
        made = await self._signer.leaf(authority, self._names, begin, end)
        self._served.change(server_context(made.certificate, made.key))
        self._leaf = Leaf(authority.name, read_at, begin, end)
        self.signed += 1

    def _failed(self, message: str) -> float:
        """Count and log a failure; seconds until the next try, longer each time."""
        self.errors += 1
        if self._once.begin(message):
            unseen = self._clock.now() - self._known_at > self._longest_gap
            trust = "not known, the caBundle cannot be read" if unseen else "as last seen"
            self._log.error("certificates: trying again soon", error=message, trust=trust)
        return self._backoff.next()

    def metrics(self) -> Iterable[Family]:
        authorities = self._known.authorities if self._known else None
        serving = self._leaf.not_after if self._leaf else None
        authority = authorities.current.not_after if authorities else None
        yield from certificate_metrics({"serving": serving, "authority": authority}, self.errors)
        text = "By how much the API server's clock is ahead of this machine's."
        offset = {} if self._offset is None else {(): self._offset}
        yield labelled("gpu_webhook_clock_offset_seconds", "gauge", text, (), offset)
        text = "1 if this process writes the authority and the caBundle, 0 if it only reads them."
        yield gauge("gpu_webhook_certificate_keeper", text, int(Duty.KEEP in self._duties))
        if Duty.SERVE in self._duties:
            valid = self._leaf is not None and self._leaf.valid(self._clock.wall())
            yield from served_metrics(self.signed, valid)
            text = (
                "1 while the published bundle trusts the serving certificate, as seen within the last minute."
            )
            yield gauge("gpu_webhook_certificate_trusted", text, int(self.trusted()))


def names_of_service(service: str, namespace: str) -> list[str]:
    """The names under which a Service is called; the API server uses the first."""
    full = f"{service}.{namespace}.svc"
    return [full, f"{full}.cluster.local", f"{service}.{namespace}", service]
