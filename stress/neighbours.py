"""A tenant's pods against another namespace: its decisions, its patience and its re-cuts.

    python -m stress.neighbours [--after SECONDS] [NAME…]     the last part of `python -m stress.tenants`

Webhook and controller run with the chart's memory limits. The webhook decides by what is free. The
controller has patience, and a MigLayout in mode Auto. Each attack runs next to the same cluster without it,
at the same time.

The tenant begins 40 seconds before the honest namespace, because a pod may hold for 30 what it does not
take. Then the honest namespace asks for a free device, waits for an eviction, and waits for a re-cut. That
may take twice the time that it takes without the attack; a re-cut may take another 10 seconds, the pause
between two looks. Nothing may be killed. A minute after the pods are gone, a process may have 15 % more
memory than the one that was not attacked. Only root can run this.

There is no real scheduler: this module sets the pods' conditions. It places the honest pods where a device
is free, and no pod of the tenant. Quotas do not exist either: a refused pod is never created. The module
does not try a cluster with fewer than 32 devices of a resource, where one namespace may hold eight of them.
It does not wait for the 300 seconds after which a blocked pod may hold a device again.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Final

from e2e.cluster.ports import free_port
from e2e.stand_in_plugin import layout_of
from e2e.store_plugin import StorePlugin

from stress.limited import limited
from stress.neighbourhood import (
    CARDS,
    HALF,
    HONEST,
    ONE,
    TWO,
    ApiServersClient,
    StandInScheduler,
    asked_by,
    build,
    pod,
)
from stress.tenant_pods import NEIGHBOURS, Neighbour, Tenant
from stress.victims import (
    CALM,
    FULL_MIB,
    PATIENCE_MIB,
    command_of,
    resident_mib,
    run_named,
    running,
    write_files,
)
from tessera.core.admission.policy import WHEN_ANNOTATION
from tessera.core.kubernetes.blocked import PATIENT
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import NODES, PODS
from tessera.simulation.control_plane.store import StatusError, Store

HELD: Final = PATIENT + 10.0  # seconds from the attack to the honest pods
LONGEST: Final = 120.0  # seconds that an honest pod is waited for
_CONFIG: Final = "fallback: {when: full, patience: 30s}\n"
_DECISIONS: Final = 80  # of the honest namespace, four a second
_LOOK: Final = 10.0  # seconds between two looks of the autopilot
_NOISE_MS: Final = 1.0, 100.0  # that other jobs on the machine add: to the median, and to the 99th percentile


@dataclass(slots=True, kw_only=True)
class Measured:
    """What became of the honest namespace, and of the processes."""

    decisions: int = 0
    right: int = 0  # decisions that left the free 2g
    times_ms: list[float] = field(default_factory=list)  # of admissions
    patience: float = LONGEST  # seconds until an eviction
    recut: float = LONGEST  # seconds until a re-cut for its pod begins
    mib: dict[str, float] = field(default_factory=dict)  # by process, when the pods are gone
    kills: int = 0

    @property
    def percentiles_ms(self) -> tuple[float, float]:
        """The median and the 99th."""
        cuts = (
            quantiles(self.times_ms, n=100, method="inclusive") if len(self.times_ms) > 1 else [LONGEST] * 99
        )
        return cuts[49], cuts[98]


def find_wrong(alone: Measured, attacked: Measured, most_kept: float) -> list[str]:
    """What does not hold of an attacked cluster, in a word each; `alone`: the same one without the attack."""
    (median, longest), (median_alone, longest_alone) = attacked.percentiles_ms, alone.percentiles_ms
    checks = {
        "baseline": alone.right == alone.decisions > 0 and max(alone.patience, alone.recut) < LONGEST,
        "decisions": attacked.right == attacked.decisions > 0,
        "admission": median <= 2 * median_alone + _NOISE_MS[0]
        and longest <= 2 * longest_alone + _NOISE_MS[1],
        "patience": attacked.patience <= 2 * alone.patience,
        "re-cut": attacked.recut <= 2 * alone.recut + _LOOK,
        "memory": all(0 < mib <= most_kept * alone.mib[name] for name, mib in attacked.mib.items()),
        "killed": not alone.kills and not attacked.kills,
    }
    return [name for name, holds in checks.items() if not holds]


async def live(store: Store, client: ApiServersClient) -> None:
    """The honest namespace's daily work: a pod every five seconds, which runs for ten.

    The webhook puts no mark on these pods, since a mark would end every doubt about it.
    """
    for number in itertools.count():
        job = pod(f"job-{number}", ONE, "full")
        job["metadata"]["annotations"] = {WHEN_ANNOTATION: "missing"}
        store.create(PODS, await client.admit(job, HONEST), HONEST)
        with suppress(StatusError):
            store.delete(PODS, f"job-{number - 2}", HONEST)
        await asyncio.sleep(5.0)


async def until(happened: Callable[[], bool]) -> float:
    """How many seconds it takes, `LONGEST` at most."""
    began = time.monotonic()
    while not happened() and time.monotonic() - began < LONGEST:
        await asyncio.sleep(0.1)
    return min(time.monotonic() - began, LONGEST)


async def ask_for_free(client: ApiServersClient, into: Measured) -> None:
    """Have it decided about pods that ask for a free 2g; no room is kept for them."""
    client.times_ms.clear()
    for number in range(_DECISIONS):
        document = await client.admit(pod(f"asks-{number}", TWO, "full"), HONEST, dry_run=True)
        into.decisions += 1
        into.right += asked_by(document) == TWO
        await asyncio.sleep(0.25)
    into.right -= client.failed
    into.times_ms = list(client.times_ms)


async def wait_for_eviction(store: Store, into: Measured) -> None:
    """Wait with a pod that has a smaller device free until it is evicted."""
    store.create(PODS, pod("patient", TWO, "patience", "patient"), HONEST)
    into.patience = await until(lambda: not any(key.key[1] == "patient" for key in store.list(PODS, HONEST)))


async def wait_for_recut(store: Store, into: Measured) -> None:
    """Wait with a pod that asks for what no node has until a node gets a layout that has it."""
    profile = HALF.removeprefix("nvidia.com/mig-")

    def is_begun() -> bool:
        nodes = (stored.document for stored in store.list(NODES))
        return any(profile in layout_of(node) for node in nodes)

    store.create(PODS, pod("wants", HALF, "auto"), HONEST)
    into.recut = await until(is_begun)


async def measure(attack: Neighbour | None, after: float) -> Measured:
    """Run a cluster, attacked or not."""
    server, measured = ApiServer(), Measured()
    store, port = server.store, free_port()
    build(store)
    async with await server.start():
        StorePlugin(store, CARDS, seconds=2.0)
        StandInScheduler(store)
        with (
            tempfile.TemporaryDirectory() as name,
            limited(FULL_MIB) as full,
            limited(PATIENCE_MIB) as patience,
        ):
            folder = Path(name)
            write_files(folder, server.url, _CONFIG)
            with (
                running(full, command_of("webhook", folder, port)) as webhook,
                running(patience, command_of("controller", folder)) as controller,
            ):
                await asyncio.sleep(CALM)
                client = ApiServersClient(port, "127.0.0.2")
                working = asyncio.create_task(live(store, ApiServersClient(port, "127.0.0.4")))
                tenant = Tenant(store, port, attack) if attack is not None else None
                attacking = asyncio.create_task(tenant.run()) if tenant is not None else None
                await asyncio.sleep(HELD)
                await asyncio.gather(
                    ask_for_free(client, measured),
                    wait_for_eviction(store, measured),
                    wait_for_recut(store, measured),
                )
                if tenant is not None and attacking is not None:
                    tenant.stop()
                    await attacking
                await asyncio.sleep(after)
                measured.mib = {"webhook": resident_mib(webhook), "controller": resident_mib(controller)}
                working.cancel()
                with suppress(asyncio.CancelledError):
                    await working
            measured.kills = full.kills + patience.kills
    return measured


def words_of(attacked: Measured, alone: Measured) -> str:
    """What was measured, and in brackets the same without the attack."""
    (median, longest), (median_alone, longest_alone) = attacked.percentiles_ms, alone.percentiles_ms
    memory = ", ".join(f"{name} {mib:.0f} ({alone.mib[name]:.0f})" for name, mib in attacked.mib.items())
    return (
        f"{attacked.right} of {attacked.decisions} pods got the free 2g ({alone.right}), an admission takes "
        f"{median:.1f} ms ({median_alone:.1f}), of 100 one {longest:.1f} ({longest_alone:.1f}); "
        f"eviction after {attacked.patience:.0f} s ({alone.patience:.0f}), re-cut after {attacked.recut:.0f} s "
        f"({alone.recut:.0f}); MiB when the pods are gone: {memory}; {attacked.kills + alone.kills} killed"
    )


async def run(attack: Neighbour, after: float) -> str:
    """Attack a cluster, with one that is not attacked next to it; say what it cost."""
    alone, attacked = await asyncio.gather(measure(None, after), measure(attack, after))
    wrong = find_wrong(alone, attacked, attack.most_kept)
    said = words_of(attacked, alone)
    return f"WRONG ({', '.join(wrong)}): {said}" if wrong else said


def main(arguments: Sequence[str] | None = None) -> int:
    """All of them, or some by name; 1 where something did not hold."""
    return run_named("neighbours", {attack.name: partial(run, attack) for attack in NEIGHBOURS}, arguments)


if __name__ == "__main__":
    sys.exit(main())
