"""Self-managed certificates: made, published, renewed, rotated; by one replica and by three."""

import asyncio
import json
import os
import re
import ssl
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.clock import offset_between
from tessera.kube.rest.client import Client as KubeClient
from tessera.serving.logs import Log
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import MUTATING_WEBHOOKS, NAMESPACES, SECRETS
from tessera.webhook.certificates import rotation
from tessera.webhook.certificates.authorities import (
    InvalidAuthorities,
    authorities_in,
    bundle_of,
    names_in,
    read_authorities,
    write_authorities,
)
from tessera.webhook.certificates.manager import CertificateManager, names_of_service
from tessera.webhook.certificates.rotation import DAY, UNREADABLE, Authorities, RotationPolicy, RotationStep
from tessera.webhook.certificates.served import ServedCertificate
from tessera.webhook.certificates.signer import Made, Question, Signer, SigningFailed, run_program
from tessera.webhook.certificates.store import (
    Conflict,
    KubeStore,
    StoredBundles,
    StoredSecret,
    WrongClock,
    check_clock,
)
from tests.kube.clock import FakeClock
from tests.kube.conflicts import check_writes
from tests.webhook.certificates.authorities import FakeStore, JumpingClock, ask
from tests.webhook.support import PAIR, Client, Live, make_pair

NAMES = [*names_of_service("gpu-webhook", "gpu-webhook"), "localhost"]
SIGNER = Signer(ask)


def quiet() -> Log:
    return Log("json", "error", os.open(os.devnull, os.O_WRONLY))


class Replica:
    """A manager and what it serves."""

    def __init__(
        self,
        store: KubeStore,
        policy: RotationPolicy = RotationPolicy(),  # noqa: B008
        signer: Signer = SIGNER,
        *,
        keeps: bool = True,
        serves: bool = True,
        log: Log | None = None,
    ) -> None:
        self.clock = JumpingClock()
        self.served = ServedCertificate()
        served = self.served if serves else None
        log = log or quiet()
        self.manager = CertificateManager(store, signer, served, NAMES, log, policy, self.clock, keeps=keeps)

    async def moves(self) -> list[RotationStep]:
        """Take steps until there is nothing to do."""
        taken: list[RotationStep] = []
        while (move := await self.manager.step()) is not RotationStep.REST:
            taken.append(move)
            assert len(taken) < 20
        return taken


def accepted(served: ServedCertificate, bundle: bytes, name: str = NAMES[0]) -> str:
    """Shake hands in memory, as an API server would: "" or why not."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=bundle.decode())
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname=name)
    other = served.context().wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return error.reason or str(error)
    return ""


def test_first_start():
    """From nothing: an authority, a bundle in every webhook, a leaf that it trusts under the Service's names."""
    store = FakeStore(("a", "b"))

    async def main() -> Replica:
        replica = Replica(store)
        assert replica.manager.not_ready() == "the API server has not answered yet"
        assert await replica.moves() == [RotationStep.ESTABLISH, RotationStep.PUBLISH, RotationStep.SIGN]
        return replica

    replica = asyncio.run(main())
    for name in NAMES[:3]:
        assert accepted(replica.served, store.bundle, name) == ""
    assert accepted(replica.served, store.bundle, "elsewhere.svc") == "CERTIFICATE_VERIFY_FAILED"
    assert replica.manager.not_ready() == "API servers may not trust the certificate yet"
    replica.clock.ahead += 3
    asyncio.run(replica.manager.step())
    assert replica.manager.not_ready() is None


def test_an_empty_secret_is_filled():
    """A Secret that a chart made, empty, with labels, is taken."""
    store = FakeStore()

    async def main() -> None:
        await store.create_secret({})
        assert await Replica(store).moves() == [
            RotationStep.ESTABLISH,
            RotationStep.PUBLISH,
            RotationStep.SIGN,
        ]

    asyncio.run(main())


def test_fault_15_two_make_the_authority_at_once():
    """Two replicas that both find nothing: one wins, and both use it."""
    store = FakeStore()

    async def main() -> list[Replica]:
        replicas = [Replica(store) for _ in range(2)]

        async def settle(replica: Replica) -> None:
            while await replica.manager.settle() < 1:
                await asyncio.sleep(0)

        await asyncio.gather(*map(settle, replicas))
        return replicas

    replicas = asyncio.run(main())
    assert store.conflicts >= 1
    assert len(names_in(store.bundle)) == 1
    for replica in replicas:
        assert accepted(replica.served, store.bundle) == ""


@pytest.mark.parametrize("write", ["create_secret", "write_secret", "publish"])
def test_conflicts_that_never_end(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Secret and the bundle are written less and less often; they are read on as always."""
    store, writes, reads = FakeStore(), list[float](), list[float]()

    async def main() -> None:
        if write == "write_secret":
            await store.create_secret({})
        clock, served = FakeClock(wall=time.time()), ServedCertificate()
        manager = CertificateManager(store, SIGNER, served, NAMES, quiet(), clock=clock)
        begun, read = clock.time, store.read_secret

        async def refuse(*_: object) -> None:
            writes.append(clock.time - begun)
            raise Conflict("changed meanwhile")

        async def note() -> StoredSecret | None:
            reads.append(clock.time - begun)
            return await read()

        monkeypatch.setattr(store, write, refuse)
        monkeypatch.setattr(store, "read_secret", note)
        monkeypatch.setattr(store, "server_date", lambda: float(int(clock.wall())))
        while clock.time < begun + 1200:
            clock.time += await manager.settle()

    asyncio.run(main())
    check_writes(writes)
    assert max(later - before for before, later in pairwise(reads)) < RotationPolicy().interval + 0.1


@pytest.mark.parametrize("write", ["create_secret", "publish"])
def test_a_conflict_that_ends_costs_a_moment(write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a replica that serves nothing writes again as soon as it wakes after a conflict, however early that is."""
    store, refused = FakeStore(), list[float]()

    async def main() -> float:
        clock = FakeClock(wall=time.time())
        manager = CertificateManager(store, SIGNER, None, (), quiet(), clock=clock)
        begun, original = clock.time, getattr(store, write)

        async def refuse_first(*given: object) -> None:
            if not refused:
                refused.append(clock.time)
                raise Conflict("changed meanwhile")
            await original(*given)

        monkeypatch.setattr(store, write, refuse_first)
        monkeypatch.setattr(store, "server_date", lambda: float(int(clock.wall())))
        while (wait := await manager.settle()) and not store.bundle:
            clock.time += 0.8 * wait
        return clock.time - begun

    assert asyncio.run(main()) < 1.0
    assert refused


def test_fault_16_clock_jumps():
    """Every clock, the API server's too, 400 days later: all is renewed at once, the old bundle stays trusted meanwhile."""
    store = FakeStore()

    async def main() -> None:
        replica = Replica(store)
        await replica.moves()

        def jump(seconds: float) -> None:
            replica.clock.ahead += seconds
            store.ahead += seconds

        before = names_in(store.bundle)
        jump(400 * DAY)
        assert replica.manager.not_ready() == "the certificate is not valid now"
        assert await replica.moves() == [RotationStep.SIGN, RotationStep.INTRODUCE, RotationStep.PUBLISH]
        assert replica.manager.not_ready() is None
        assert before < names_in(store.bundle)
        jump(50)
        assert await replica.moves() == []
        jump(50)
        assert await replica.moves() == []
        jump(50)
        assert await replica.moves() == [RotationStep.PROMOTE, RotationStep.SIGN]
        jump(7 * DAY + 7200 + 100)
        moves = await replica.moves()
        assert moves == [RotationStep.PUBLISH, RotationStep.SIGN, RotationStep.FORGET]
        assert not names_in(store.bundle) & before
        # and backwards, to before there was anything
        jump(-3000 * DAY)
        await replica.moves()
        assert replica.manager.not_ready() in (None, "API servers may not trust the certificate yet")
        # and so far that every authority has ended
        jump(9000 * DAY)
        assert (await replica.moves())[0] is RotationStep.ESTABLISH

    asyncio.run(main())


def test_api_server_down():
    """Without the API server the certificate in use goes on, the failure is counted, and it is tried again."""
    store = FakeStore()

    async def main() -> None:
        replica = Replica(store)
        await replica.moves()
        replica.clock.ahead += 10
        await replica.moves()
        store.down = True
        assert [await replica.manager.settle() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
        assert replica.manager.errors == 6
        assert replica.manager.not_ready() is None
        store.down = False
        assert await replica.manager.settle() == 15.0

    asyncio.run(main())


_KEYS = {"ca.crt": PAIR.certificate, "ca.key": PAIR.key}
_DAMAGED = [
    ({"ca.crt": b"x", "ca.key": b"y"}, "ca.crt: one CA certificate in PEM is expected"),
    ({"ca.crt": PAIR.certificate}, "ca.key: missing"),
    ({"ca.crt": PAIR.certificate, "ca.key": b"y"}, "ca.crt, ca.key: no certificate chain and private key in PEM"),
    ({**_KEYS, "ca.key": make_pair().key}, "ca.crt, ca.key: the certificate and the private key do not belong together"),
    ({**_KEYS, "retiring-since": b"soon"}, "retiring-since: not a Unix time"),
    ({**_KEYS, "next.crt": b"x"}, "next.crt: one CA certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "complaint"), _DAMAGED)
def test_a_damaged_secret_is_set_aside_and_replaced(data, complaint):
    """A Secret of ours that can sign nothing is reported, kept under other names after a while, and replaced; no leaf is lost."""
    with pytest.raises(InvalidAuthorities, match=f"^Secret a/b: {complaint}"):
        read_authorities(data, "Secret a/b")
    store = FakeStore()

    async def main() -> None:
        replica = Replica(store)
        await replica.moves()
        before = names_in(store.bundle)
        assert store.secret is not None
        store.secret = StoredSecret("damaged", data)
        for _ in range(2):
            await replica.manager.settle()
            replica.clock.ahead += 100
            assert store.secret.data == data  # two steps of a person who repairs it are not disturbed
        assert replica.manager.errors == 2
        assert replica.manager.not_ready() is None
        replica.clock.ahead += 100
        assert await replica.moves() == [
            RotationStep.SET_ASIDE,
            RotationStep.ESTABLISH,
            RotationStep.ADOPT,
            RotationStep.PUBLISH,
        ]
        found = store.secret.data
        assert {
            name.removeprefix("damaged-"): found[name] for name in found if name.startswith("damaged-")
        } == data
        assert read_authorities(found, "x") is not None
        assert before < names_in(store.bundle)
        assert accepted(replica.served, store.bundle) == ""
        # a second time it is for a person to decide, and the message says what to type; which then works
        store.secret = StoredSecret("again", {**found, "ca.key": b""})
        replica.clock.ahead += 1
        await replica.manager.settle()
        replica.clock.ahead += 1000
        with pytest.raises(
            InvalidAuthorities, match="kubectl patch secret gpu-webhook-ca -n gpu-webhook --type=json"
        ):
            await replica.manager.step()
        store.secret = StoredSecret("emptied", {})
        assert RotationStep.ESTABLISH in await replica.moves()

    asyncio.run(main())


def test_a_secret_of_another_program_is_left_alone():
    """A Secret that also holds what is not ours is never changed, and the message says to name another one."""
    store = FakeStore()
    data = {"tls.crt": PAIR.certificate, "tls.key": PAIR.key, "ca.crt": PAIR.certificate}

    async def main() -> None:
        await store.create_secret(data)
        replica = Replica(store)
        for _ in range(2):
            with pytest.raises(
                InvalidAuthorities,
                match=r"it also holds tls\.crt, tls\.key, so it may belong to another program",
            ):
                await replica.manager.step()
            replica.clock.ahead += 1000
            store.ahead += 1000
        assert store.secret is not None
        assert store.secret.data == data

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [-3000 * DAY, -3600, 3600, 3000 * DAY])
def test_fault_41_clock_of_one_replica_is_wrong(wrong):
    """A replica whose clock is not the API server's is not ready, writes and signs nothing, and says so; others go on."""
    store = FakeStore()

    async def main() -> None:
        good, bad = Replica(store), Replica(store)
        bad.clock.ahead = wrong
        await good.moves()
        secret, bundles = store.secret, store.bundles
        for _ in range(3):
            await bad.manager.settle()
        assert (store.secret, store.bundles) == (secret, bundles)
        assert not bad.served.present
        assert bad.manager.errors == 3
        side = "ahead of" if wrong > 0 else "behind"
        assert f"{side} the API server's: this process writes" in (bad.manager.not_ready() or "")
        text = exposition(bad.manager.metrics()).decode()
        (offset,) = re.findall(r"^gpu_webhook_clock_offset_seconds (\S+)", text, re.MULTILINE)
        assert abs(float(offset) + wrong) < 10
        assert "gpu_webhook_certificate_trusted 0\n" in text
        assert await good.moves() == []
        good.clock.ahead += 3
        await good.manager.step()
        assert good.manager.not_ready() is None
        # while it serves, too; and when its clock is right again, it goes on
        good.clock.ahead = wrong
        await good.manager.settle()
        assert good.manager.not_ready() is not None
        bad.clock.ahead = good.clock.ahead = 3
        assert await bad.moves() == [RotationStep.SIGN]
        assert await good.moves() == []

    asyncio.run(main())


def test_clock_tolerance():
    """Half an hour is tolerated, so that no two replicas differ by more than an hour; a slow answer proves nothing."""
    policy = RotationPolicy()
    assert [offset_between(date, 100, 110) for date in (90, 99, 100, 105, 110, 120)] == [-10, -1, 0, 0, 0, 10]
    check_clock(1800, policy)
    check_clock(-1800, policy)
    with pytest.raises(WrongClock, match=r"^this machine's clock is 31 minutes behind the API server's"):
        check_clock(1860, policy)
    with pytest.raises(WrongClock, match=r"^this machine's clock is 400 days ahead of the API server's"):
        check_clock(-400 * DAY, policy)


@pytest.mark.parametrize("keeps", [True, False])
def test_fault_31_bundle_emptied_and_hidden(keeps):
    """The bundle is emptied and cannot be read any more: within a minute the metric says 0, and the log says why."""
    store = FakeStore()

    async def main() -> None:
        await Replica(store).moves()
        read, write = os.pipe()
        log = Log("json", "info", write)
        replica = Replica(store, keeps=keeps, log=log)
        await replica.moves()
        replica.clock.ahead = 5
        await replica.moves()

        def trusted() -> str:
            text = exposition(replica.manager.metrics()).decode()
            (value,) = re.findall(r"^gpu_webhook_certificate_trusted (\d)$", text, re.MULTILINE)
            return str(value)

        assert trusted() == "1"
        store.bundles = StoredBundles("emptied", {"gpu-allocation.k8s.io": b""})
        store.hidden = True
        await replica.manager.settle()
        assert trusted() == "1"  # one failed read proves nothing
        replica.clock.ahead += 61
        assert trusted() == "0"
        assert (
            replica.manager.not_ready() is None
        )  # a right that is missing is no reason to take every replica away
        replica.clock.ahead += 600
        await replica.manager.settle()
        log.close()
        os.close(write)
        with os.fdopen(read) as lines:
            last = json.loads(lines.readlines()[-1])
        assert "mutatingwebhookconfigurations is forbidden" in last["error"]
        assert last["trust"] == "not known, the caBundle cannot be read"
        store.hidden = False
        if not keeps:  # it can be read again, and is empty still
            await replica.manager.settle()
            assert trusted() == "0"
            assert (
                replica.manager.not_ready() == "the webhook configuration does not trust the certificate yet"
            )
            await Replica(store).moves()
        await replica.moves()
        replica.clock.ahead += 5
        await replica.moves()
        assert trusted() == "1"

    asyncio.run(main())


def test_replicas_that_only_read():
    """One process keeps authority and bundle and serves nothing; a replica signs for itself and writes nothing."""
    store = FakeStore()

    async def main() -> None:
        replica, keeper = Replica(store, keeps=False), Replica(store, serves=False)
        assert await replica.moves() == []
        assert (
            replica.manager.not_ready()
            == "there is no certificate authority yet: `tessera certs run` makes it"
        )
        assert await keeper.moves() == [RotationStep.ESTABLISH, RotationStep.PUBLISH]
        assert keeper.manager.not_ready() is None
        version = store.version
        assert await replica.moves() == [RotationStep.SIGN]
        assert store.version == version
        assert accepted(replica.served, store.bundle) == ""
        assert await keeper.moves() == []
        names = {family.name for family in keeper.manager.metrics()}
        assert names == {
            "gpu_webhook_certificate_expiry_timestamp_seconds",
            "gpu_webhook_certificate_errors_total",
            "gpu_webhook_clock_offset_seconds",
            "gpu_webhook_certificate_keeper",
        }
        for one, keeps in ((keeper, b"1"), (replica, b"0")):
            assert b"\ngpu_webhook_certificate_keeper " + keeps + b"\n" in exposition(one.manager.metrics())
        # without the keeper a replica renews what it serves, as long as the authority lives
        replica.clock.ahead = store.ahead = 3 * DAY
        assert await replica.moves() == [RotationStep.SIGN]
        replica.clock.ahead = store.ahead = 800 * DAY
        assert await replica.moves() == []
        assert replica.manager.not_ready() == "the certificate is not valid now"
        assert store.version == version

    asyncio.run(main())


def test_key_of_another():
    """An authority whose key is another's signs nothing."""

    async def main() -> None:
        one, other = await SIGNER.authority(0, 9e9), await SIGNER.authority(0, 9e9)
        await SIGNER.leaf(one, ["x"], 0, 9e9)
        with pytest.raises(SigningFailed, match="do not belong together"):
            await SIGNER.leaf(replace(one, key=other.key), ["x"], 0, 9e9)
        with pytest.raises(SigningFailed, match="not a private key"):
            await SIGNER.leaf(replace(one, key=b"x"), ["x"], 0, 9e9)
        with pytest.raises(SigningFailed, match="not a certificate"):
            await SIGNER.leaf(replace(one, certificate=b"x"), ["x"], 0, 9e9)

    asyncio.run(main())


def test_authorities_round_trip():
    """What is written to the Secret is what is read from it."""

    async def main() -> None:
        one, two, three = [await SIGNER.authority(0, 9e9) for _ in range(3)]
        for authorities in (
            Authorities(one),
            Authorities(one, two),
            rotation.promote(Authorities(one, two), 5.0),
            rotation.adopt(rotation.promote(Authorities(one, two), 5.0), [three], 7.0),
        ):
            data = {
                name: value for name, value in write_authorities(authorities).items() if value is not None
            }
            again = read_authorities(data, "x")
            assert again is not None
            assert again == authorities
            assert [one.key for one in again.needed()] == [one.key for one in authorities.needed()]
            assert all(not one.key for one in again.retiring)
            assert all(b"PRIVATE" not in value for name, value in data.items() if not name.endswith("key"))
        assert [one.name for one in authorities_in(bundle_of([one, two]))] == [one.name, two.name]

    asyncio.run(main())
    assert read_authorities({}, "x") is None
    assert read_authorities({"ca.crt": b""}, "x") is None


def test_names_in_bundle():
    """What is in a bundle and is no certificate is noticed."""
    (name,) = names_in(PAIR.certificate)
    broken = PAIR.certificate[:100] + b"!!" + PAIR.certificate[100:]
    assert names_in(b"") == frozenset()
    assert names_in(b"\n" + PAIR.certificate + b"\n\n") == {name}
    assert names_in(PAIR.certificate + b"Cg==") == {name, UNREADABLE}
    assert names_in(PAIR.certificate + broken) == {name, UNREADABLE}


def test_program_is_isolated(tmp_path, monkeypatch):
    """Neither a folder nor a variable of the webhook's process decides which code signs."""
    trap = tmp_path / "tessera"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('trapped')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begin, _ = asyncio.run(Signer(run_program).validity(PAIR.certificate))
    assert begin > 0


def test_program():
    """The program makes what the library makes, and its failures are one sentence."""

    async def main() -> None:
        signer = Signer(run_program)
        authority = await signer.authority(1000, time.time() + DAY)
        made = await signer.leaf(authority, NAMES, 1000, time.time() + 100)
        served = ServedCertificate()
        from tessera.webhook.certificates.served import server_context

        served.change(server_context(made.certificate, made.key))
        assert accepted(served, authority.certificate) == ""
        assert abs((await signer.validity(made.certificate))[1] - time.time() - 100) < 30
        with pytest.raises(SigningFailed, match=r"^this is not a certificate in PEM$"):
            await signer.validity(b"x")
        with pytest.raises(SigningFailed, match=r"^making a certificate failed: .*"):
            await signer.leaf(authority, ["ü" * 300], 0, 1)

    asyncio.run(main())


QUICK = RotationPolicy(
    authority_life=600,
    rotate_after=300,
    leaf_life=2.5,
    renew_after=0.5,
    settle=0.8,
    lag=0.2,
    skew=0.1,
    interval=0.1,
)
API_LAG = 0.4  # seconds by which an API server may be behind with the bundle


class ApiServers(threading.Thread):
    """API servers that call every ready replica, over and over: one is up to date, one is late."""

    def __init__(self, store: FakeStore, replicas: list[tuple[Replica, Live]]) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.replicas = replicas
        self.calls = 0
        self.failures: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for replica, live in self.replicas:
                for lag in (0.0, API_LAG):
                    then = time.monotonic() - lag
                    bundle = [bundle for since, bundle in self.store.published if since <= then][-1]
                    if replica.manager.not_ready() is None:
                        self.call(live, bundle)

    def call(self, live: Live, bundle: bytes) -> None:
        self.calls += 1
        began = time.monotonic()
        try:
            with Client(live.port, trust=bundle) as client:
                assert client.post(b"x").body == b"x"
        except OSError as error:
            if (
                time.monotonic() - began < QUICK.settle - API_LAG
            ):  # else this machine was later than any API server
                self.failures.append(str(error))


def test_fault_14_rotation_under_load():
    """A rotation with three replicas that serve over TLS all the while: no call fails, and it ends."""
    store = FakeStore()
    replicas = [Replica(store, QUICK) for _ in range(3)]
    lives = [Live(served=replica.served) for replica in replicas]
    try:
        keeping = [
            asyncio.run_coroutine_threadsafe(replica.manager.run(), live._thread.loop)
            for replica, live in zip(replicas, lives, strict=True)
        ]
        first = time.monotonic()
        lives[0].until(
            lambda: (
                all(one.manager.not_ready() is None for one in replicas)
                and time.monotonic() > first + API_LAG
            )
        )
        api = ApiServers(store, list(zip(replicas, lives, strict=True)))
        api.start()
        before = names_in(store.bundle)
        asyncio.run(rotate(store))
        lives[0].until(lambda: not before & names_in(store.bundle))
        api.over.set()
        api.join(10)
        for future in keeping:
            future.cancel()
        assert api.failures == []
        assert api.calls > 10
        assert [replica.manager.errors for replica in replicas] == [0, 0, 0]
    finally:
        for live in lives:
            live.__exit__()


async def rotate(store: FakeStore) -> None:
    """Begin a rotation, as the command does."""
    while True:
        secret = await store.read_secret()
        assert secret is not None
        authorities = read_authorities(secret.data, "x")
        assert authorities is not None
        fresh = await SIGNER.authority(time.time() - 1, time.time() + 600)
        try:
            await store.write_secret(
                secret.version, write_authorities(rotation.introduce(authorities, fresh, time.time()))
            )
        except Conflict:
            continue
        return


def test_in_a_cluster():
    """Against an API server: the same, under the real names, with conflicts and without losing anything."""

    async def main() -> None:
        async with ApiServer() as server:
            await server.start()
            server.store.create(NAMESPACES, {"metadata": {"name": "gpu-webhook"}})
            server.store.create(
                MUTATING_WEBHOOKS,
                {
                    "metadata": {"name": "gpu-allocation-webhook", "labels": {"app": "gpu-webhook"}},
                    "webhooks": [
                        {"name": "a.k8s.io", "clientConfig": {"service": {"name": "gpu-webhook"}}},
                        {"name": "b.k8s.io", "clientConfig": {"caBundle": "Cg=="}, "timeoutSeconds": 5},
                    ],
                },
            )
            async with KubeClient(Cluster(ServerAddress.parse(server.url, where="test"))) as client:
                store = KubeStore(client, "gpu-webhook", "gpu-webhook-ca", "gpu-allocation-webhook")
                replicas = [Replica(store) for _ in range(3)]
                await asyncio.gather(*(settled(replica) for replica in replicas))
                found = await store.read_bundles()
                assert found is not None
                assert len(set(found.bundles.values())) == 1
                for replica in replicas:
                    assert accepted(replica.served, found.bundles["a.k8s.io"]) == ""
                document = server.store.get(MUTATING_WEBHOOKS, "gpu-allocation-webhook").document
                assert document["metadata"]["labels"] == {"app": "gpu-webhook"}
                assert document["webhooks"][0]["clientConfig"]["service"] == {"name": "gpu-webhook"}
                assert document["webhooks"][1]["timeoutSeconds"] == 5
                secret = await store.read_secret()
                assert secret is not None
                assert set(secret.data) == {"ca.crt", "ca.key"}
                with pytest.raises(Conflict):
                    await store.write_secret("1", {"ca.crt": b"x"})
                with pytest.raises(Conflict):
                    await store.create_secret({"ca.crt": b"x"})
                with pytest.raises(Conflict):
                    await store.publish(type(found)("1", found.bundles), b"x")
                server.store.delete(SECRETS, "gpu-webhook-ca", "gpu-webhook")
                server.store.delete(MUTATING_WEBHOOKS, "gpu-allocation-webhook")
                assert await store.read_bundles() is None
                assert await store.read_secret() is None

    async def settled(replica: Replica) -> None:
        while await replica.manager.settle() < 1:
            await asyncio.sleep(0)

    asyncio.run(main())


async def _unused(question: Question) -> Made:
    raise SigningFailed("no")


def test_signing_fails():
    """Without a signer there is an error that is reported, and no crash."""

    async def main() -> None:
        replica = Replica(FakeStore(), signer=Signer(_unused))
        await replica.manager.settle()
        assert replica.manager.errors == 1
        assert not replica.served.present

    asyncio.run(main())
