"""The order in which authorities come and go: case by case, and three replicas against each other."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.webhook.certificates import rotation
from tessera.webhook.certificates.rotation import (
    UNREADABLE,
    Authorities,
    Authority,
    Duty,
    Leaf,
    RotationPolicy,
    RotationStep,
    Sightings,
    Situation,
    not_ready,
    plan,
)
from tests.examples import examples

POLICY = RotationPolicy(
    authority_life=1000, rotate_after=500, leaf_life=100, renew_after=40, settle=10, lag=2, skew=5
)
OLD, NOW, NEXT, STRAY = (
    Authority("old", 0, 1000),
    Authority("now", 100, 1100),
    Authority("next", 590, 1590),
    Authority("stray", 0, 9999),
)
LEAF = Leaf("now", 600, 100, 700)


def bundle(*names: str) -> tuple[frozenset[str], ...]:
    return (frozenset(names),)


@pytest.mark.parametrize(
    ("authorities", "bundles", "leaf", "seen", "now", "move"),
    [
        # the beginning
        (None, None, None, {}, 600, RotationStep.ESTABLISH),
        (None, bundle("now"), LEAF, {}, 600, RotationStep.ESTABLISH),
        (Authorities(NOW), None, None, {}, 590, RotationStep.SIGN),
        (Authorities(NOW), bundle(), None, {}, 590, RotationStep.PUBLISH),
        (Authorities(NOW), bundle("now"), None, {}, 590, RotationStep.SIGN),
        (Authorities(NOW), bundle("now"), LEAF, {}, 599, RotationStep.REST),
        # the bundle is kept right, in every webhook
        (Authorities(NOW), bundle("now") + bundle(), LEAF, {}, 599, RotationStep.PUBLISH),
        (Authorities(NOW), bundle("now", UNREADABLE), LEAF, {}, 599, RotationStep.PUBLISH),
        (Authorities(NOW, NEXT), bundle("now"), LEAF, {}, 610, RotationStep.PUBLISH),
        (Authorities(NOW), bundle("now", "stray"), LEAF, {}, 599, RotationStep.ADOPT),
        (Authorities(NOW, None, (STRAY,), 590), bundle("now", "stray"), LEAF, {}, 599, RotationStep.REST),
        # the leaf is renewed by the clock on the wall
        (Authorities(NOW), bundle("now"), replace(LEAF, made=550), {}, 589, RotationStep.REST),
        (Authorities(NOW), bundle("now"), replace(LEAF, made=550), {}, 590, RotationStep.SIGN),
        (Authorities(NOW), bundle("now"), LEAF, {}, 700, RotationStep.SIGN),
        (Authorities(NOW), bundle("now"), replace(LEAF, not_before=600), {}, 599, RotationStep.SIGN),
        # an authority is made in time, published, seen long enough, and only then used
        (Authorities(NOW), bundle("now"), LEAF, {}, 600, RotationStep.INTRODUCE),
        (Authorities(NOW, NEXT), bundle("now", "next"), LEAF, {"next": 9.9}, 610, RotationStep.REST),
        (Authorities(NOW, NEXT), bundle("now", "next"), LEAF, {"next": 10}, 610, RotationStep.PROMOTE),
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), LEAF, {"next": 9.9}, 611, RotationStep.REST),
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), LEAF, {"next": 10}, 611, RotationStep.SIGN),
        # unless there is nothing to lose
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), LEAF, {}, 690, RotationStep.SIGN),
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), LEAF, {}, 700, RotationStep.SIGN),
        (Authorities(NEXT), bundle("next"), LEAF, {}, 611, RotationStep.SIGN),
        # what retires is dropped when no leaf of it can be valid
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), replace(LEAF, issuer="next", made=715, not_after=815),
         {}, 714, RotationStep.REST),
        (Authorities(NEXT, None, (NOW,), 610), bundle("next"), replace(LEAF, issuer="next", made=715, not_after=815),
         {}, 714, RotationStep.PUBLISH),
        (Authorities(NEXT, None, (NOW,), 610), bundle("next"), replace(LEAF, issuer="next", made=715, not_after=815),
         {}, 719, RotationStep.REST),
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), replace(LEAF, issuer="next", made=715, not_after=815),
         {}, 719, RotationStep.REST),
        (Authorities(NEXT, None, (NOW,), 610), bundle("now", "next"), replace(LEAF, issuer="next", made=715, not_after=815),
         {}, 720, RotationStep.PUBLISH),
        (Authorities(NEXT, None, (NOW,), 610), bundle("next"), replace(LEAF, issuer="next", made=715, not_after=815),
         {}, 720, RotationStep.FORGET),
        # an authority that can sign no more
        (Authorities(NOW), bundle("now"), LEAF, {}, 1100, RotationStep.ESTABLISH),
        (Authorities(NOW), bundle("now"), LEAF, {}, 99, RotationStep.ESTABLISH),
        (Authorities(NOW, NEXT), bundle("now", "next"), LEAF, {}, 1100, RotationStep.PROMOTE),
        (Authorities(NOW, NEXT), bundle("now", "next"), LEAF, {}, 1600, RotationStep.ESTABLISH),
        # a rotation that was begun and left
        (Authorities(Authority("now", 600, 1600), Authority("next", 0, 1000)), bundle("now", "next"),
         replace(LEAF, not_after=999), {}, 610, RotationStep.INTRODUCE),
    ],
)  # fmt: skip
def test_plan(authorities, bundles, leaf, seen, now, move):
    """What is there decides the next step."""
    assert plan(Situation(now, authorities, bundles, leaf, seen), POLICY) is move


@pytest.mark.parametrize(
    ("authorities", "bundles", "leaf", "now", "keeper", "server"),
    [
        (None, bundle(), None, 600, RotationStep.ESTABLISH, RotationStep.REST),
        (Authorities(NOW), bundle(), None, 590, RotationStep.PUBLISH, RotationStep.SIGN),
        (Authorities(NOW), bundle("now"), None, 590, RotationStep.REST, RotationStep.SIGN),
        (Authorities(NOW), bundle("now", "stray"), LEAF, 599, RotationStep.ADOPT, RotationStep.REST),
        (Authorities(NOW), bundle("now"), LEAF, 600, RotationStep.INTRODUCE, RotationStep.REST),
        (Authorities(NOW), bundle("now"), LEAF, 1100, RotationStep.ESTABLISH, RotationStep.REST),
        (Authorities(NOW, NEXT), bundle("now", "next"), LEAF, 1100, RotationStep.PROMOTE, RotationStep.REST),
    ],
)
def test_duties_are_divided(authorities, bundles, leaf, now, keeper, server):
    """A process that keeps the authorities signs no leaf; one that serves signs its leaf and does nothing else."""
    at = Situation(now, authorities, bundles, leaf, {})
    assert plan(at, POLICY, Duty.KEEP) is keeper
    assert plan(at, POLICY, Duty.SERVE) is server


@pytest.mark.parametrize(
    ("bundles", "leaf", "seen", "found", "now", "word"),
    [
        (bundle("now"), LEAF, {"now": 2}, set(), 610, None),
        (bundle("now"), LEAF, {"now": 0}, {"now"}, 610, None),
        (bundle("now"), LEAF, {"now": 1}, set(), 610, "API servers may not trust the certificate yet"),
        (bundle("now"), None, {"now": 2}, set(), 610, "there is no certificate yet"),
        (bundle("now"), LEAF, {"now": 2}, set(), 700, "the certificate is not valid now"),
        (None, LEAF, {}, set(), 610, "the webhook configuration does not exist"),
        ((), LEAF, {}, set(), 610, "the webhook configuration does not trust the certificate yet"),
        (bundle("x"), LEAF, {}, set(), 610, "the webhook configuration does not trust the certificate yet"),
        (bundle("now") + bundle("x"), LEAF, {}, set(), 610, "the webhook configuration does not trust the certificate yet"),
    ],
)  # fmt: skip
def test_ready(bundles, leaf, seen, found, now, word):
    """Ready only with a leaf that the published bundle trusts."""
    assert not_ready(Situation(now, Authorities(NOW), bundles, leaf, seen), POLICY, frozenset(found)) == word


def test_moves():
    """What each move makes of the Secret; keys go when an authority stops signing."""
    keyed = replace(NOW, key=b"key")
    first = rotation.establish(None, keyed, 1)
    assert first == Authorities(keyed)
    second = rotation.introduce(first, NEXT, 2)
    assert second == Authorities(keyed, NEXT)
    third = rotation.promote(second, 3)
    assert third == Authorities(NEXT, None, (NOW,), 3)
    assert third.retiring[0].key == b""
    assert rotation.adopt(third, [STRAY, NOW], 4) == Authorities(NEXT, None, (NOW, STRAY), 4)
    assert rotation.forget(third) == Authorities(NEXT, None, (), 3)
    assert rotation.introduce(second, OLD, 5) == Authorities(NOW, OLD, (NEXT,), 5)
    assert rotation.establish(second, OLD, 5) == Authorities(OLD, None, (NOW, NEXT), 5)


def test_sightings():
    """Only an unbroken time in every bundle counts, and a gap breaks it."""
    seen = Sightings(longest_gap=5)
    assert seen.observe(bundle("a"), 0, 0) == {"a": 0}
    assert seen.observe(bundle("a", "b"), 3, 3) == {"a": 3, "b": 0}
    assert seen.found == {"a"}
    assert seen.observe(bundle("a", "b") + bundle("a"), 5, 5) == {"a": 5}
    assert seen.observe(bundle("a", "b"), 7, 7) == {"a": 7, "b": 0}
    assert seen.observe(bundle("a", "b"), 13, 13) == {"a": 0, "b": 0}
    assert seen.found == {"a", "b"}
    assert seen.observe(bundle("a", "b"), 14, 17) == {"a": 4, "b": 4}
    assert seen.observe(bundle("a", "b"), 19, 20) == {"a": 0, "b": 0}
    assert seen.observe(None, 21, 21) == {}
    assert seen.found == frozenset()


# Three replicas, each at its own pace, on a cluster whose API servers learn of a new bundle late.

SIMULATED = RotationPolicy(
    authority_life=900, rotate_after=300, leaf_life=60, renew_after=20, settle=8, lag=8, skew=2
)
API_LAG = 7.0  # an API server may still go by any bundle that was published this long ago
GAP = 4.0


@dataclass
class World:
    """The two objects, their versions, and what API servers may believe."""

    time: float = 10_000.0
    authorities: Authorities | None = None
    authorities_version: int = 0
    bundle: frozenset[str] = frozenset()
    bundle_version: int = 0
    believed: list[tuple[float, frozenset[str]]] = field(default_factory=list)  # (replaced at, bundle)
    made: dict[str, Authority] = field(default_factory=dict)

    def publish(self, names: frozenset[str]) -> None:
        self.believed.append((self.time, self.bundle))
        self.bundle = names
        self.bundle_version += 1

    def store(self, authorities: Authorities | None) -> None:
        self.authorities = authorities
        self.authorities_version += 1

    def views(self) -> Iterator[frozenset[str]]:
        self.believed = [one for one in self.believed if one[0] > self.time - API_LAG]
        yield self.bundle
        for _, names in self.believed:
            yield names


class Replica:
    """One replica: reads the bundle, reads the Secret, acts; and may be stopped between any two of these."""

    def __init__(self, world: World, offset: float, duties: Duty = Duty.KEEP | Duty.SERVE) -> None:
        self.world = world
        self.duties = duties
        self.offset = offset  # of its clock
        self.paused = False
        self.was_ready = False
        self.leaf: Leaf | None = None
        self.sightings = Sightings(GAP)
        self.known: Situation | None = None  # the last that it saw
        self.steps = self.life()

    @property
    def now(self) -> float:
        return self.world.time + self.offset

    def life(self) -> Iterator[None]:
        world = self.world
        while True:
            asked = world.time
            yield
            bundle, bundle_version = world.bundle, world.bundle_version
            yield
            seen = self.sightings.observe((bundle,), asked, world.time)
            read_at = self.now
            yield
            authorities, authorities_version = world.authorities, world.authorities_version
            yield
            at = Situation(self.now, authorities, (bundle,), self.leaf, seen)
            self.known = at
            move = plan(at, SIMULATED, self.duties)
            fresh = None
            if move in (RotationStep.ESTABLISH, RotationStep.INTRODUCE):
                fresh = Authority(
                    f"ca{len(world.made)}",
                    self.now - SIMULATED.skew,
                    self.now + SIMULATED.authority_life,
                )
                world.made[fresh.name] = fresh
                yield  # making one takes a while
            if move is RotationStep.PUBLISH:
                if world.bundle_version == bundle_version and authorities is not None:
                    world.publish(frozenset(one.name for one in authorities.trusted(self.now, SIMULATED)))
            elif move is RotationStep.SIGN:
                assert authorities is not None
                current = authorities.current
                yield  # signing takes a while, too
                self.leaf = Leaf(
                    current.name,
                    read_at,
                    current.not_before,
                    min(read_at + SIMULATED.leaf_life, current.not_after),
                )
                self.known = replace(at, leaf=self.leaf)
            elif move is not RotationStep.REST and world.authorities_version == authorities_version:
                if move is RotationStep.ESTABLISH and fresh is not None:
                    world.store(rotation.establish(authorities, fresh, self.now))
                elif authorities is not None and move is RotationStep.INTRODUCE and fresh is not None:
                    world.store(rotation.introduce(authorities, fresh, self.now))
                elif authorities is not None and move is RotationStep.PROMOTE:
                    world.store(rotation.promote(authorities, self.now))
                elif authorities is not None and move is RotationStep.ADOPT:
                    found = [world.made[name] for name in rotation.strays(at)]
                    world.store(rotation.adopt(authorities, found, self.now))
                elif authorities is not None and move is RotationStep.FORGET:
                    world.store(rotation.forget(authorities))
            yield

    def ready(self) -> bool:
        if self.known is None:
            return False
        live = replace(self.known, now=self.now, leaf=self.leaf)
        return not_ready(live, SIMULATED, self.sightings.found) is None


class Cluster:
    """The world and its replicas, run second by second."""

    def __init__(self, seed: int, keepers: int = 0) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.duties = Duty.SERVE if keepers else Duty.KEEP | Duty.SERVE
        self.keepers = [self.start(Duty.KEEP) for _ in range(keepers)]
        self.replicas = [self.start(self.duties) for _ in range(3)]
        self.checking = False
        self.run(30)
        self.checking = True

    def start(self, duties: Duty) -> Replica:
        return Replica(self.world, self.random.uniform(-SIMULATED.skew / 2, SIMULATED.skew / 2), duties)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.time += 1
            # every running replica gets through at least one whole reconciliation a second, interleaved at random
            running = [one for one in (*self.keepers, *self.replicas) if not one.paused]
            turns = running * self.random.randint(8, 16)
            self.random.shuffle(turns)
            for replica in turns:
                next(replica.steps)
                self.check()
            self.check()

    def check(self) -> None:
        """Every ready replica is trusted by every API server, however late that one is, and stays ready.

        Unless it slept until its leaf was nearly over.
        """
        if not self.checking:
            return
        for replica in self.replicas:
            ready = replica.ready()
            assert ready or replica.paused or not replica.was_ready
            replica.was_ready = False
            if ready:
                assert replica.leaf is not None
                left = replica.leaf.not_after - replica.now
                replica.was_ready = not replica.paused and left > SIMULATED.settle + 1
                issuer = self.world.made[replica.leaf.issuer]
                assert issuer.valid(self.world.time)
                for names in self.world.views():
                    assert replica.leaf.issuer in names

    def settled(self) -> None:
        """In the end all is well and simple again."""
        for replica in (*self.keepers, *self.replicas):
            replica.paused = False
        for _ in range(40):
            self.run(10)
            if self._simple():
                return
        pytest.fail(f"still not settled: {self.world.authorities} {self.world.bundle}")

    def _simple(self) -> bool:
        authorities = self.world.authorities
        return (
            authorities is not None
            and authorities == Authorities(authorities.current, None, (), authorities.retiring_since)
            and self.world.bundle == {authorities.current.name}
            and all(
                one.ready() and one.leaf and one.leaf.issuer == authorities.current.name
                for one in self.replicas
            )
        )


_EVENTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 40)),
    st.tuples(st.just("pause"), st.integers(0, 2)),
    st.tuples(st.just("resume"), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.integers(0, 2)),
    st.tuples(st.just("keeper"), st.integers(0, 5)),
    st.tuples(st.just("rotate"), st.just(0)),
)


def _disturb(cluster: Cluster, number: int) -> None:
    """Pause, resume or restart a process that keeps the authorities, if there is one."""
    which, what = number % 2, number // 2
    if which < len(cluster.keepers):
        if what == 2:
            cluster.keepers[which] = cluster.start(Duty.KEEP)
        else:
            cluster.keepers[which].paused = what == 0


@given(st.integers(0, 2**32), st.lists(_EVENTS, max_size=12), st.integers(0, 2))
@settings(max_examples=examples(40))
def test_fault_14_three_replicas(seed, events, keepers):
    """Rotations, restarts and pauses at any moment: no call to a ready replica ever fails, and it ends.

    So it is when replicas keep the authorities themselves, and when they only read what one process keeps, or two.
    """
    cluster = Cluster(seed, keepers)
    for event, number in events:
        replica = cluster.replicas[number % 3]
        if event == "run":
            cluster.run(number)
        elif event == "pause":
            replica.paused = True
        elif event == "resume":
            replica.paused = False
        elif event == "restart":
            cluster.replicas[number] = cluster.start(cluster.duties)
        elif event == "keeper":
            _disturb(cluster, number)
        elif cluster.world.authorities is not None and cluster.world.authorities.following is None:
            fresh = Authority(
                f"ca{len(cluster.world.made)}", cluster.world.time - 2, cluster.world.time + 900
            )
            cluster.world.made[fresh.name] = fresh
            cluster.world.store(rotation.introduce(cluster.world.authorities, fresh, cluster.world.time))
    cluster.settled()


@given(
    st.integers(0, 2**32),
    st.sampled_from(["delete", "restore"]),
    st.integers(0, 30),
    st.booleans(),
    st.integers(0, 1),
)
@settings(max_examples=examples(40))
def test_secret_deleted_or_restored(seed, fault, later, paused, keepers):
    """A Secret that is deleted, or put back as it was before a rotation, costs no call either."""
    cluster = Cluster(seed, keepers)
    backup = cluster.world.authorities
    assert backup is not None
    fresh = Authority("rotated", cluster.world.time - 2, cluster.world.time + 900)
    cluster.world.made[fresh.name] = fresh
    cluster.world.store(rotation.introduce(backup, fresh, cluster.world.time))
    cluster.run(later)
    cluster.replicas[0].paused = paused
    cluster.world.store(None if fault == "delete" else backup)
    cluster.run(30)
    cluster.settled()


@given(st.integers(0, 2**32), st.integers(1, 3000))
@settings(max_examples=examples(20))
def test_fault_16_clock_jumps(seed, jump):
    """After every clock has jumped, by however much, all replicas have what they need again soon."""
    cluster = Cluster(seed)
    cluster.checking = False
    cluster.world.time += jump
    cluster.run(20)
    assert all(replica.ready() for replica in cluster.replicas)
    cluster.checking = True
    cluster.settled()


@given(st.integers(0, 2**32))
@settings(max_examples=examples(20))
def test_bundle_wiped(seed):
    """A bundle that another client emptied is put back, and no replica is ready meanwhile."""
    cluster = Cluster(seed)
    cluster.world.publish(frozenset())
    cluster.checking = False
    cluster.run(15)
    for replica in cluster.replicas:
        replica.was_ready = False
    cluster.checking = True
    cluster.settled()


@given(st.integers(0, 2**32))
@settings(max_examples=examples(20))
def test_fault_15_one_authority(seed):
    """Replicas that start together end up with one authority, and all use it."""
    cluster = Cluster(seed)
    assert cluster.world.authorities is not None
    assert {replica.leaf.issuer for replica in cluster.replicas if replica.leaf} == {
        cluster.world.authorities.current.name
    }
    assert cluster.world.bundle == {cluster.world.authorities.current.name}
