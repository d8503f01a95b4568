"""The tools' growth: processor time and memory of every command, the page and the controller against the number of nodes.

The exponent is the slope of a line through the logarithms (least squares): 1 where twice as many nodes take twice the time.
A machine that does other things only ever adds time. So a row whose exponent is too large is measured again, and the least of
each cluster counts.
"""

import hashlib
import math
import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import linear_regression
from typing import Final

from benchmarks import tool_process
from benchmarks.corpus import varied
from benchmarks.corpus.documents import encoded, write_list
from benchmarks.corpus.serving import served
from benchmarks.processes import FOLDER, Unavailable
from benchmarks.results import Results
from benchmarks.stage import Stage
from benchmarks.tool_cases import COMMANDS, SERVERS, Case
from benchmarks.tool_process import Places, Spent

RUN: Final = "tools"
SMALL: Final = 12  # nodes: what is needed once, whatever the cluster
NODES: Final = (500, 1_000, 2_000, 4_000)
SECONDS: Final = "s of processor time"
PEAK: Final = "MiB at most"
TIME: Final = "exponent of processor time"
MEMORY: Final = "exponent of memory"
EXPONENT: Final = "exponent"
MOST: Final = 1.25  # of an exponent: caches that no longer hold everything cost some of it
_ROUNDS: Final = 3  # at most, of a row that is too large
_LEAST_SECONDS: Final = 0.005  # of processor time: less than that is noise
_LEAST_MEMORY: Final = 4.0  # MiB: the same
_FILES: Final = ("nodes", "pods", "claims", "all", "manifests", "pod", "installation", "bridged")
_PREPARATION: Final = (Path(varied.__file__), Path(__file__))  # what the files on disk depend on


def nodes_of(count: int) -> str:
    """How a cluster is called."""
    return f"{count:,} nodes"


def run(_stage: Stage, results: Results) -> None:
    """Every row on every cluster, in a quick run too: what is not measured could grow unseen."""
    measure(results, rows())


def rows() -> dict[str, str | Case]:
    """What is measured, by its name."""
    return {**{one.name: one for one in COMMANDS}, **{text: name for name, text in SERVERS.items()}}


def measure(results: Results, some: dict[str, str | Case], sizes: Iterable[int] = NODES) -> None:
    """Measure some rows, and keep what was found."""
    sizes = tuple(sizes)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([tool_process.__name__])
    with ExitStack() as stack:
        clusters = {size: stack.enter_context(_cluster(size)) for size in (SMALL, *sizes)}
        for name, row in some.items():
            found: dict[int, Spent] = {}
            for _ in range(_ROUNDS):
                for size in sizes:
                    spent = _spent(context, row, clusters[SMALL], clusters[size])
                    found[size] = _least(found.get(size, spent), spent)
                if max(_exponents(found)) <= MOST:
                    break
            for size, spent in found.items():
                results.add(RUN, name, SECONDS, nodes_of(size), [spent.seconds])
                results.add(RUN, name, PEAK, nodes_of(size), [spent.peak])
            for subject, exponent in zip((TIME, MEMORY), _exponents(found), strict=True):
                results.add(RUN, name, EXPONENT, subject, [exponent])


def _least(one: Spent, other: Spent) -> Spent:
    return Spent(min(one.seconds, other.seconds), min(one.peak, other.peak), min(one.grown, other.grown))


def _exponents(found: dict[int, Spent]) -> tuple[float, float]:
    """Of processor time and of memory; 0 where there is too little of it to say."""
    return (
        exponent({size: one.seconds for size, one in found.items()}, _LEAST_SECONDS),
        exponent({size: one.grown for size, one in found.items()}, _LEAST_MEMORY),
    )


def exponent(values: dict[int, float], least: float) -> float:
    """The slope of the line through the logarithms; values below the least count as that."""
    points = [(math.log(size), math.log(max(value, least))) for size, value in values.items()]
    slope: float = linear_regression(*zip(*points, strict=True)).slope
    return slope


def _spent(
    context: multiprocessing.context.ForkServerContext, row: str | Case, small: Places, large: Places
) -> Spent:
    """What one row takes on one cluster, in a new process."""
    with ExitStack() as stack:
        if row == "controller":  # it writes: each time it finds a cluster that it has not seen
            small = small | {"kubeconfig": stack.enter_context(served(small["bridged"])).kubeconfig}
            large = large | {"kubeconfig": stack.enter_context(served(large["bridged"])).kubeconfig}
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=tool_process.measure, args=(row, small, large, sending))
        process.start()
        sending.close()
        try:
            spent: Spent = receiving.recv()
        except EOFError:
            raise Unavailable(f"{row} failed: what it said is above") from None
        finally:
            process.join()
            receiving.close()
    return spent


# the clusters


@contextmanager
def _cluster(nodes: int) -> Iterator[Places]:
    """A cluster as files and as an API server; the files are made once for all runs."""
    folder = FOLDER / f"varied-{_edition()}" / str(nodes)
    done = folder / "done"
    files = {name: folder / f"{name}.json" for name in _FILES}
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, objects in _objects(nodes):
            write_list(files[name], objects)
        done.touch()
    places = {name: str(file) for name, file in files.items()}
    with served(*(places[name] for name in ("nodes", "pods", "claims", "installation"))) as cluster:
        yield {
            **places,
            "kubeconfig": cluster.kubeconfig,
            "node": varied.node_name(0),
            "waits": varied.WAITS,
            "layout": varied.LAYOUT,
            "devices": str(max(1, nodes // 20)),
        }


def _objects(nodes: int) -> Iterator[tuple[str, list[bytes]]]:
    """What is in the files."""
    parts = {
        "nodes": [encoded(one) for one in varied.cluster(nodes)],
        "pods": [encoded(one) for one in varied.pods(nodes)],
        "claims": [encoded(one) for one in varied.claims(nodes)],
    }
    yield from parts.items()
    yield "all", [*parts["nodes"], *parts["pods"], *parts["claims"], *map(encoded, varied.operator())]
    yield (
        "manifests",
        [
            encoded(varied.as_written(one))
            for number, one in enumerate(varied.pods(nodes))
            if number % varied.PODS == 1
        ],
    )
    yield "pod", parts["pods"][varied.PODS - 1 : varied.PODS]
    yield "installation", [encoded(one) for one in varied.installation(nodes)]
    yield "bridged", [encoded(one) for one in varied.bridged(nodes)]


def _edition() -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in _PREPARATION)).hexdigest()[:12]
