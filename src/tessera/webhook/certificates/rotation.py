"""Which certificate authority is used when: decided from what is there, by every replica for itself.

There is no leader. What is described here one process may do wholly, or one that keeps the authorities and others that
serve and only read (`Duty`). The state is in two objects that all replicas read and change under their resource version: the
Secret with the authorities (`Authorities`) and the webhook configuration with the bundle that API servers trust. Each
replica reads both, asks `plan` for the next step, takes it, and reads again; a replica that loses a race has lost
nothing. An authority is *following* (published, not used yet), then *current* (it signs), then *retiring* (trusted
still, signs no more), then gone. What keeps every call good on the way:

- An authority is promoted only after it was seen in the published bundle for long enough that every API server has
  seen it too; and no replica changes to a leaf that it signed before that, unless it has nothing better to lose.
- A retiring authority stays trusted until no leaf that it signed can be valid any more. A leaf's life is counted from
  the moment at which its replica *read* the Secret, so a replica that slept between reading and signing makes no
  exception. No replica has to know which others there are.
- A certificate in the bundle that the Secret does not know is not thrown out but adopted as retiring: a replica
  may be serving with it.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class RotationPolicy:
    """How long things last, in seconds."""

    authority_life: float = 730 * DAY
    rotate_after: float = 365 * DAY  # the other half of its life is for a rotation that fails unnoticed
    leaf_life: float = 7 * DAY  # also how long an authority is trusted after its last signature
    renew_after: float = 2 * DAY  # leaves five days for the API server to be unreachable
    # From seeing a bundle to being sure that every API server uses it; they take about 1 s.
    settle: float = 120.0
    lag: float = 2.0  # the same before being ready for the first time, where waiting longer costs more
    skew: float = 3600.0  # by how much any two clocks may differ
    interval: float = 15.0  # between two reconciliations of a replica


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others. Two with the same name are the same."""

    name: str  # SHA-256 of the certificate
    not_before: float = field(compare=False)
    not_after: float = field(compare=False)
    certificate: bytes = field(default=b"", compare=False, repr=False)
    key: bytes = field(default=b"", compare=False, repr=False)

    def valid(self, now: float) -> bool:
        return self.not_before <= now < self.not_after


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a replica serves with."""

    issuer: str
    made: float  # when the Secret was read that it was signed from
    not_before: float
    not_after: float

    def valid(self, now: float) -> bool:
        return self.not_before <= now < self.not_after


@dataclass(frozen=True, slots=True)
class Authorities:
    """The authorities, as they are in the Secret."""

    current: Authority
    following: Authority | None = None
    retiring: tuple[Authority, ...] = ()
    retiring_since: float = 0.0  # when the last of them stopped signing

    def retired(self, now: float, policy: RotationPolicy) -> bool:
        """Whether nothing that the retiring ones signed can still be valid, on any clock."""
        # once for the clock that the last leaf was made by, once for the clock that we go by
        return now >= self.retiring_since + policy.leaf_life + 2 * policy.skew

    def needed(self) -> tuple[Authority, ...]:
        """Those that sign, now or next."""
        return (self.current,) if self.following is None else (self.current, self.following)

    def trusted(self, now: float, policy: RotationPolicy) -> tuple[Authority, ...]:
        """What the bundle should have."""
        return self.needed() if self.retired(now, policy) else self.needed() + self.retiring

    def fits(self, bundle: frozenset[str], now: float, policy: RotationPolicy) -> bool:
        """Whether a bundle may stay as it is.

        Between the moments at which the first replica's clock and the last one's say that a certificate has retired,
        it may be there or not: else two replicas would put it in and take it out in turns.
        """
        perhaps_retired = self.retired(now + policy.skew, policy)
        least = self.needed() if perhaps_retired else self.needed() + self.retiring
        return {one.name for one in least} <= bundle <= {one.name for one in self.trusted(now, policy)}


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a replica knows when it decides."""

    now: float
    authorities: Authorities | None  # None: there is no Secret, or nothing in it
    bundles: tuple[frozenset[str], ...] | None  # names, one set per webhook; None: no such configuration
    leaf: Leaf | None
    seen: Mapping[str, float]  # for how many seconds without a break each name has been in every bundle

    def published(self, name: str) -> bool:
        """Whether every API server that is up to date trusts this authority."""
        return bool(self.bundles) and all(name in bundle for bundle in self.bundles or ())


class RotationStep(enum.Enum):
    """What a replica can do next."""

    ESTABLISH = "make the first authority"  # or one in place of one that can sign no more
    INTRODUCE = "make the next authority"
    PROMOTE = "sign with the next authority"
    ADOPT = "keep a certificate that only the bundle has"
    FORGET = "drop retired authorities"
    PUBLISH = "publish the bundle"
    SIGN = "sign a certificate to serve with"
    SET_ASIDE = "set a damaged authority aside"  # never planned: such a Secret cannot be read
    REST = "nothing"


UNREADABLE: Final = "unreadable"  # stands in a bundle's names for what is no certificate


class Duty(enum.Flag):
    """What a process does of all this."""

    KEEP = enum.auto()  # the authorities in the Secret, and the bundle: needs the right to change them
    SERVE = enum.auto()  # a leaf of its own: reads, and changes nothing


def plan(at: Situation, policy: RotationPolicy, duties: Duty = Duty.KEEP | Duty.SERVE) -> RotationStep:
    """The next step of a process with these duties."""
    authorities, keeps = at.authorities, Duty.KEEP in duties
    if authorities is None or not authorities.current.valid(at.now):
        return _replacement(at) if keeps else RotationStep.REST
    if keeps and strays(at):
        return RotationStep.ADOPT
    if keeps and not all(authorities.fits(bundle, at.now, policy) for bundle in at.bundles or ()):
        return RotationStep.PUBLISH
    if Duty.SERVE in duties and _leaf_needed(at, authorities.current, policy):
        return RotationStep.SIGN
    return _rotation(at, authorities, policy) if keeps else RotationStep.REST


def _replacement(at: Situation) -> RotationStep:
    """There is no authority that can sign."""
    following = at.authorities.following if at.authorities else None
    return (
        RotationStep.PROMOTE if following is not None and following.valid(at.now) else RotationStep.ESTABLISH
    )


def _leaf_needed(at: Situation, current: Authority, policy: RotationPolicy) -> bool:
    leaf = at.leaf
    if leaf is None or not leaf.valid(at.now):
        return True
    if leaf.issuer == current.name:
        return at.now >= leaf.made + policy.renew_after
    nothing_to_lose = not at.published(leaf.issuer) or at.now >= leaf.not_after - policy.settle
    return nothing_to_lose or at.seen.get(current.name, 0.0) >= policy.settle


def _rotation(at: Situation, authorities: Authorities, policy: RotationPolicy) -> RotationStep:
    if authorities.retiring and authorities.retired(at.now, policy) and at.bundles:
        return RotationStep.FORGET
    following = authorities.following
    if following is None:
        due = at.now >= authorities.current.not_before + policy.rotate_after
        return RotationStep.INTRODUCE if due else RotationStep.REST
    if not following.valid(at.now) or at.now >= following.not_before + policy.rotate_after:
        return RotationStep.INTRODUCE  # a rotation that was not finished in time
    settled = at.seen.get(following.name, 0.0) >= policy.settle
    return RotationStep.PROMOTE if settled else RotationStep.REST


def strays(at: Situation) -> set[str]:
    """What is in the bundle and not in the Secret."""
    known = (*at.authorities.needed(), *at.authorities.retiring) if at.authorities else ()
    return set().union(*(at.bundles or ())) - {one.name for one in known} - {UNREADABLE}


def not_ready(at: Situation, policy: RotationPolicy, found: frozenset[str]) -> str | None:
    """Why an API server might refuse the leaf, or None. `found`: see `Sightings`."""
    leaf = at.leaf
    if leaf is None:
        return "there is no certificate yet"
    if not leaf.valid(at.now):
        return "the certificate is not valid now"
    if at.bundles is None:
        return "the webhook configuration does not exist"
    if not at.published(leaf.issuer):
        return "the webhook configuration does not trust the certificate yet"
    if leaf.issuer not in found and at.seen.get(leaf.issuer, 0.0) < policy.lag:
        return "API servers may not trust the certificate yet"
    return None


# What a move makes of the Secret. `fresh` is a new authority.


def establish(authorities: Authorities | None, fresh: Authority, now: float) -> Authorities:
    """A first authority; one that it replaces stays trusted for as long as any other that retires."""
    if authorities is None:
        return Authorities(fresh)
    return Authorities(
        fresh, None, _joined(authorities.retiring, authorities.current, authorities.following), now
    )


def introduce(authorities: Authorities, fresh: Authority, now: float) -> Authorities:
    """An authority that is to follow; one that was to follow and did not is let go like any other."""
    if authorities.following is None:
        return replace(authorities, following=fresh)
    return replace(
        authorities,
        following=fresh,
        retiring=_joined(authorities.retiring, authorities.following),
        retiring_since=now,
    )


def promote(authorities: Authorities, now: float) -> Authorities:
    """The one that follows signs from now on."""
    if authorities.following is None:
        raise ValueError("no authority follows")
    return Authorities(authorities.following, None, _joined(authorities.retiring, authorities.current), now)


def adopt(authorities: Authorities, found: Iterable[Authority], now: float) -> Authorities:
    """Let certificates retire that only the bundle knew."""
    return replace(authorities, retiring=_joined(authorities.retiring, *found), retiring_since=now)


def forget(authorities: Authorities) -> Authorities:
    """Nothing retires any more."""
    return replace(authorities, retiring=())


def _joined(retiring: tuple[Authority, ...], *more: Authority | None) -> tuple[Authority, ...]:
    """Retiring authorities need no keys: no replica signs with them."""
    added = (replace(one, key=b"") for one in more if one is not None)
    return tuple({one.name: one for one in (*retiring, *added)}.values())


class Sightings:
    """For how long names have been in every bundle, as this replica saw it, by a clock that never jumps."""

    def __init__(self, longest_gap: float) -> None:
        self._longest_gap = longest_gap
        self._since: dict[str, float] = {}
        self._last: float | None = None
        self.found: frozenset[str] = frozenset()  # were there when counting began, and ever since

    def observe(
        self, bundles: tuple[frozenset[str], ...] | None, asked: float, answered: float
    ) -> Mapping[str, float]:
        """Note what is there. After a gap that something could have happened in, counting begins again.

        The answer is of some moment between `asked` and `answered`, and the process may have slept there: gaps are
        taken as long as they may have been, and times as short.
        """
        names = frozenset.intersection(*bundles) if bundles else frozenset()
        if self._last is None or answered - self._last > self._longest_gap:
            self._since = {}
            self.found = names
        self.found &= names
        self._last = asked
        self._since = {name: self._since.get(name, answered) for name in names}
        return {name: answered - since for name, since in self._since.items()}
