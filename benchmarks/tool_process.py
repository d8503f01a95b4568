"""One measurement of a tool, in a process of its own that has all modules already: only its work is measured.

The tool runs twice on a cluster of a few nodes, so that what it needs once is there, and once on the cluster that is measured.
What the second small run takes is the same for every cluster, and is subtracted.
"""

import asyncio
import contextlib
import io
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.tool_cases import Case
from tessera.cli.admit_explanation import explainer
from tessera.cli.app import run
from tessera.cli.common.options import ClusterChoice
from tessera.controller.claims.plan import plan
from tessera.controller.claims.reconciler import ClaimReconciler
from tessera.controller.claims.state import ClaimState, FollowedPod, PodsClaim, Template
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import ReconcilerParts
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.dashboard.board import Board
from tessera.dashboard.server import serve_dashboard
from tessera.kube.event_recorder import Recorder
from tessera.kube.object_files import objects_in
from tessera.kube.rest.client import path_of
from tessera.kube.view.live import LiveView
from tessera.kube.view.policy import PolicySource
from tessera.kube.watch.follow import Follower
from tessera.serving.address import Address

_BAD_INPUT: Final = 2
_MOSAICS: Final = 100
_PLANS: Final = 100

Places = dict[str, str]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a tool took for one cluster."""

    seconds: float  # of processor time, without what any cluster takes
    peak: float  # MiB
    grown: float  # MiB by which the cluster made it larger


def measure(row: str | Case, small: Places, large: Places, answer: Connection) -> None:
    """Do the work of a row on both clusters, and tell what the large one took."""
    work = _work(row)
    work(small)
    once = _processor_time(work, small)
    before = _peak()
    seconds = _processor_time(work, large) - once
    answer.send(Spent(seconds, _peak(), _peak() - before))
    answer.close()


def _work(row: str | Case) -> Callable[[Places], None]:
    if isinstance(row, Case):
        return lambda places: command(row.arguments(places))
    return {"page": page, "page_changes": page_changes, "controller": controller, "plans": plans}[row]


def _processor_time(work: Callable[[Places], None], places: Places) -> float:
    begun = time.process_time()
    work(places)
    return time.process_time() - begun


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# commands


class _UntilShown(io.StringIO):
    """Standard output of a command that goes on for ever: what it writes first ends it."""

    def flush(self) -> None:
        if self.tell():
            raise KeyboardInterrupt


def command(arguments: list[str]) -> None:
    """Run a command line of `tessera`; what it prints is made, and thrown away."""
    endless = "--watch" in arguments
    errors = io.StringIO()
    with (
        Path(os.devnull).open("w") as nothing,
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(_UntilShown() if endless else nothing),
    ):
        code = run(arguments)
    if code == _BAD_INPUT:
        raise RuntimeError(f"{arguments}: {errors.getvalue()[-500:]}")


# servers


def page(places: Places) -> None:
    """The dashboard until it serves, and what a browser asks of it."""
    asyncio.run(_with_page(places, changes=False))


def page_changes(places: Places) -> None:
    """The same, and every twentieth node changes."""
    asyncio.run(_with_page(places, changes=True))


async def _with_page(places: Places, *, changes: bool) -> None:
    async with ClusterChoice(kubeconfig=places["kubeconfig"]).connected() as client:
        board, view = Board("bench"), LiveView(client, keep=None)
        explain = explainer(view.offers, partial(PolicySource().read, client))
        async with view.following(), serve_dashboard(client, board, explain, Address("127.0.0.1", 0)) as url:
            host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
            names = sorted(board.nodes)
            asked = ("/state", "/mosaics?nodes=" + ",".join(names[:_MOSAICS]), "/metrics")
            for path in asked[:1] if changes else asked:
                await _get(host, int(port), path)
            if changes:
                for name in names[::20]:
                    changed = {"status": {"allocatable": {"nvidia.com/gpu": str(time.monotonic_ns() % 1000)}}}
                    await client.patch(path_of("v1", "nodes", name=name, subresource="status"), changed)
                await _get(host, int(port), "/state")


async def _get(host: str, port: int, path: str) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {status!r}")
    while await reader.read(1 << 16):
        pass
    writer.close()


def controller(places: Places) -> None:
    """The controller's reconciler from its start until it has nothing more to write."""
    asyncio.run(_reconcile(places))


async def _reconcile(places: Places) -> None:
    async with ClusterChoice(kubeconfig=places["kubeconfig"]).connected() as client:
        recorder = Recorder(client, "bench")
        parts = ReconcilerParts(
            client=client,
            follower=Follower(client),
            recorder=recorder,
            metrics=ControllerMetrics(),
            fence=lambda: None,
        )
        reconciler = ClaimReconciler(parts, TicketKeeper(client, "gpu-webhook"))
        following = asyncio.ensure_future(reconciler.follower.run())
        await reconciler.synced()
        while await reconciler.carry_out():
            pass
        following.cancel()
        await asyncio.wait((following,))


def plans(places: Places) -> None:
    """The controller reads what there is, and plans a hundred times."""
    state = ClaimState()
    for _, kind, raw in objects_in([places["bridged"]]):
        match kind:
            case "Pod":
                if (pod := FollowedPod.read(raw)) is not None:
                    state.put_pod(pod)
            case "ResourceClaim":
                state.put_claim(PodsClaim.read(raw))
            case _:
                state.put_template(Template.read(raw))
    for _ in range(_PLANS):
        for group in plan(state, time.time()):
            list(group)
