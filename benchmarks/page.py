"""The page of a large cluster in a real browser: when there is something to see, what updates cost, and memory on both sides.

Every node of the cluster but one in ten has eight cards that are cut; five in six pods hold a device, by its id, and the
others wait: more tiles than any cluster of that size has.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from benchmarks.corpus.documents import Document, encoded
from benchmarks.processes import LOAD_CORE, PROGRAMS, SERVER_CORE, Running, Unavailable, on_core
from benchmarks.results import TESSERA, Results
from benchmarks.stage import ApiServer, Stage
from tessera.core.mig.geometry import find_product
from tessera.core.mig.layout import NodeLayout
from tessera.protocol.mig.documents import read_layout
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, mapping_of

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

RUN: Final = "page"
NODES: Final = 5_000
PODS: Final = 60_000
SECONDS: Final = "seconds"
PROCESSOR: Final = "seconds of processor time"
MEMORY: Final = "MiB"
WORK: Final = "% of a core"
SIZE: Final = "KiB"
_CARDS: Final = 8
_KINDS: Final = (  # product, memory of a card in MiB, layout of every card; one node in so many is of each kind
    ("NVIDIA-H200", "143771", "1g.18gb=7"),
    ("NVIDIA-A100-SXM4-80GB", "81920", "2g.20gb=2,3g.40gb=1"),
    ("NVIDIA-H100-80GB-HBM3", "81559", "1g.10gb=7"),
)
_PATIENCE: Final = 60.0  # seconds
_STORM_SECONDS: Final = 10.0
# Of two updates one is a heartbeat, which changes nothing on the page, and one takes a device away or gives it back.
_STORM: Final = urlencode(
    {
        "perMinute": 5000,
        "every": 2,
        "from": '"nvidia.com/mig-1g.18gb":"56"',
        "to": '"nvidia.com/mig-1g.18gb":"55"',
    }
)


def run(stage: Stage, results: Results) -> None:
    """The server and a tab, some rounds; each begins with a new server."""
    from e2e.cluster import Unavailable as NoBrowser
    from e2e.page import browser

    found: dict[tuple[str, str], list[float]] = {}
    nodes = 500 if stage.effort.short else NODES
    try:
        with browser() as chromium, _apiserver(stage, nodes) as apiserver:
            for _ in range(min(3, stage.effort.rounds)):
                with _dashboard(apiserver.kubeconfig) as (process, url):
                    page = chromium.new_page(viewport={"width": 1280, "height": 900})
                    for key, value in _measure(apiserver, process, url, page):
                        found.setdefault(key, []).append(value)
                    page.close()
    except NoBrowser as error:
        results.note(f"{RUN} was left out: {error}")
        return
    results.note(
        f"{RUN}: {nodes:,} nodes, {nodes * PODS // NODES:,} pods; Chromium without a window, 1,280 × 900 pixels"
    )
    for (what, unit), values in found.items():
        results.add(RUN, what, unit, TESSERA, values)


def _measure(
    apiserver: ApiServer, process: Running, url: str, page: "Page"
) -> Iterator[tuple[tuple[str, str], float]]:
    yield ("the server until it serves", SECONDS), time.monotonic() - process.started
    yield ("the server until it serves", PROCESSOR), process.cpu_seconds()
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable", {"timeDomain": "threadTicks"})  # not what other processes take
    begun = time.monotonic()
    page.goto(url, wait_until="commit")
    _until(
        page,
        "document.querySelectorAll('canvas.heat').length > 0 && document.documentElement.dataset.drawn > 0",
    )
    yield ("first paint: all nodes in the overview", SECONDS), time.monotonic() - begun
    yield (
        ("the state, as it is sent to a tab", SIZE),
        page.evaluate("fetch('state').then((a) => a.text()).then((t) => t.length)") / 1024,
    )
    yield ("the tab until first paint", PROCESSOR), _task_seconds(browser)
    yield ("the tab's heap, groups folded", MEMORY), _heap(browser)
    begun = time.monotonic()
    page.click(".fold")
    _until(page, "document.querySelectorAll('button.tile').length > 0")
    yield ("a group of thousands opened, until its tiles are drawn", SECONDS), time.monotonic() - begun
    begun = time.monotonic()
    page.fill("#filter", "trainer-00017")
    _until(page, "document.querySelectorAll('article.node').length === 1")
    yield ("a pod found among all", SECONDS), time.monotonic() - begun
    page.fill("#filter", "")
    time.sleep(1)
    yield from _in_a_storm(apiserver, process, page, browser)
    yield ("the tab's heap, a group open", MEMORY), _heap(browser)
    yield ("the server", MEMORY), process.memory()
    yield ("the server at most", MEMORY), process.memory("VmHWM")


def _in_a_storm(
    apiserver: ApiServer, process: Running, page: "Page", browser: "CDPSession"
) -> Iterator[tuple[tuple[str, str], float]]:
    """What 5,000 updates a minute cost both sides, and how much is sent for them."""
    page.evaluate(
        """() => { window.received = 0; const counting = new EventSource("events");
        counting.addEventListener("change", (event) => { window.received += event.data.length; }); }"""
    )
    time.sleep(2)
    apiserver.storm(_STORM)
    time.sleep(1)
    before = (
        _task_seconds(browser),
        process.cpu_seconds(),
        page.evaluate("window.received"),
        time.monotonic(),
    )
    time.sleep(_STORM_SECONDS)
    after = (
        _task_seconds(browser),
        process.cpu_seconds(),
        page.evaluate("window.received"),
        time.monotonic(),
    )
    apiserver.storm("")
    tab, server, received, seconds = (b - a for a, b in zip(before, after, strict=True))
    yield ("the tab, 5,000 updates a minute", WORK), 100 * tab / seconds
    yield ("the server, 5,000 updates a minute", WORK), 100 * server / seconds
    yield ("sent to a tab each second, 5,000 updates a minute", SIZE), received / 1024 / seconds


def _until(page: "Page", condition: str) -> None:
    """Look every few milliseconds; the page's own policy forbids Playwright's way, which evaluates text."""
    deadline = time.monotonic() + _PATIENCE
    while not page.evaluate(condition):
        if time.monotonic() > deadline:
            raise Unavailable(f"the page never came to this: {condition}")
        time.sleep(0.005)


def _metric(browser: "CDPSession", name: str) -> float:
    metrics: list[dict[str, Any]] = browser.send("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in metrics if one["name"] == name)


def _heap(browser: "CDPSession") -> float:
    browser.send("HeapProfiler.collectGarbage")
    return _metric(browser, "JSHeapUsedSize") / 1024 / 1024


def _task_seconds(browser: "CDPSession") -> float:
    return _metric(browser, "TaskDuration")


@contextlib.contextmanager
def _apiserver(stage: Stage, count: int) -> Iterator[ApiServer]:
    """The stand-in for an API server, with the page's own cluster."""
    command: list[str | Path] = [
        PROGRAMS / "apiserver", "-tls-cert", stage.identity.certificate, "-tls-key", stage.identity.key,
        "-nodes", stage.file(f"page-nodes-{count}.jsonl", (encoded(node(number)) for number in range(count))),
        "-pods", stage.file(f"page-pods-{count}.jsonl", map(encoded, _pods(count))),
    ]  # fmt: skip
    process = Running(on_core(LOAD_CORE, command))
    try:
        url = f"https://{process.line()}"
        yield ApiServer(url, stage.kubeconfig(url, stage.authority.files.certificate), stage.tls)
    finally:
        process.stop()


@contextlib.contextmanager
def _dashboard(kubeconfig: Path) -> Iterator[tuple[Running, str]]:
    tessera = Path(sys.executable).parent / "tessera"
    process = Running(on_core(SERVER_CORE, [tessera, "dashboard", "--kubeconfig", kubeconfig, "--port", "0"]))
    try:
        yield process, process.line().split()[0]
    finally:
        process.stop()


# the cluster


@lru_cache
def _layout(kind: int) -> NodeLayout:
    name, memory, cut = _KINDS[kind]
    product = find_product(name, int(memory))
    assert product is not None
    return read_layout(cut, [product] * _CARDS)


def _kind(number: int) -> int | None:
    return None if number % 10 == 9 else number % len(_KINDS)


def node(number: int) -> Document:
    """A node as an API server sends it, with the labels and annotations that the page reads."""
    name, kind = f"node-{number:05d}", _kind(number)
    labels = {"kubernetes.io/hostname": name, "pool": f"pool-{number % 4}"}
    annotations: Document = {}
    allocatable = {"cpu": "96", "memory": "1028Gi", "pods": "110"}
    if kind is not None:
        product, memory, _ = _KINDS[kind]
        layout = _layout(kind)
        labels |= {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.memory": memory,
            "nvidia.com/gpu.count": str(_CARDS),
        }
        labels["nvidia.com/mig.config.state"] = "failed" if number % 97 == 0 else "success"
        annotations[MAPPING] = encode_mapping(mapping_of(layout, name))
        allocatable |= {resource: str(count) for resource, count in layout.resources().items()}
    heartbeat = {"lastHeartbeatTime": "2026-11-15T08:00:00Z"}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "resourceVersion": str(1000 + number),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"unschedulable": number % 53 == 0},
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [
                {"type": "Ready", "status": "False" if number % 211 == 0 else "True", **heartbeat}
            ],
        },
    }


def _pods(nodes: int) -> Iterator[Document]:
    """Twelve pods for each node, on those with devices; some wait."""
    homes = [number for number in range(nodes) if _kind(number) is not None]
    number = 0
    for place, home in enumerate(homes):
        share = nodes * PODS // NODES * (place + 1) // len(homes) - nodes * PODS // NODES * place // len(
            homes
        )
        name, layout = f"node-{home:05d}", _layout(home % len(_KINDS))
        slots = [(resource, slot) for resource, some in layout.slots().items() for slot in some]
        for resource, slot in slots[: share if home % 5 else 3]:
            yield _pod(number, resource, name, slot.uuid(name))
            number += 1
    for waiting in range(number, nodes * PODS // NODES):
        yield _pod(waiting, "nvidia.com/mig-7g.141gb", "", "")


def _pod(number: int, resource: str, home: str, device: str) -> Document:
    allocated = [{"name": resource, "resources": [{"resourceID": device}]}] if device else []
    waits = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/5000 nodes are available: 5000 Insufficient " + resource,
    }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"trainer-{number:05d}-{number * 7919 % 99991:05d}",
            "namespace": f"team-{number % 23}",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": f"2026-11-15T{number % 8:02d}:{number % 60:02d}:00Z",
        },
        "spec": {
            "nodeName": home,
            "containers": [
                {"name": "main", "resources": {"limits": {resource: "1"}, "requests": {resource: "1"}}}
            ],
        },
        "status": {
            "phase": "Running" if home else "Pending",
            "conditions": [] if home else [waits],
            "containerStatuses": [{"name": "main", "allocatedResourcesStatus": allocated}],
        },
    }
