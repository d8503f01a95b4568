"""`python -m benchmarks [names…] [--quick]`: measure, compare, and write it down."""

import argparse
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import guard, report
from benchmarks.answers import check_programs
from benchmarks.machine import describe
from benchmarks.processes import Unavailable, build_programs
from benchmarks.results import Results
from benchmarks.stage import FULL, QUICK, Stage

RECORD: Final = Path(__file__).parent / "record.json"
RUNS: Final = {  # name → what it measures; a module of that name has `run(stage, results)`
    "decision": "one decision in process, beside decoding alone",
    "instructions": "one decision in instructions, which do not depend on the machine's mood",
    "https": "throughput and latency over HTTPS",
    "connections": "memory of connections that are kept",
    "tls": "our TLS beside the event loop's: processor time and memory",
    "view": "filling the view: time and memory",
    "storm": "latency while nodes change",
    "free": "what is free, by all pods: time, memory, events",
    "full": "a decision by what is free beside one by what is offered",
    "startup": "the command's and the server's start",
    "growth": "decision and memory against nodes and containers",
    "tools": "every command, the page and the controller against the number of nodes",
    "controller": "the controller on a large, full cluster: processor time, memory, watches, a look of the autopilot",
    "planning": "plans against cards and kinds, and the whole command on a large cluster",
    "cards": "real cards on a stand-in driver: a look, a cut of all of them, memory",
    "dra": "the DRA driver: claims prepared and ended, slices, memory",
    "scheduling": "pods with claims through a real scheduler, with and without counters",
    "readiness": "pods ready on a real node: device plugin, DRA, and the bridge",
    "kube": "pod creation through a real kube-apiserver",
    "page": "the page of a large cluster in a real browser",
    "worth": "how long tasks wait in simulated days, by how pods are admitted",
    "autopilot": "how long tasks wait in simulated days, by who cuts the cards",
}
ALONE: Final = frozenset(
    {"autopilot", "cards", "controller", "full", "worth"}
)  # nothing stands beside them: they need no peers
QUICK_RUNS: Final = ("decision", "https", "view", "startup")


def main() -> int:
    """Run the benchmarks that were named, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        epilog="; ".join(f"{name}: {what}" for name, what in RUNS.items()),
    )
    parser.add_argument("names", nargs="*", metavar="name", help="which; by default all", choices=[*RUNS, []])
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"about a minute: fewer and shorter rounds, and by default only {', '.join(QUICK_RUNS)}",
    )
    parser.add_argument("--check", action="store_true", help="compare with the record, and write nothing")
    arguments = parser.parse_args()
    names = arguments.names or (QUICK_RUNS if arguments.quick else list(RUNS))
    if arguments.check and not arguments.names:
        names = ("instructions", *QUICK_RUNS, "full", "cards", "tools", "controller", "autopilot")
    results = Results(machine=describe(quick=arguments.quick))
    try:
        for _ in measure(names, results, quick=arguments.quick):
            if not arguments.check:
                keep(results)  # each time: what was measured is not lost when something ends it
    except Unavailable as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    if arguments.check:
        return guard.check(results, Results.load(RECORD))
    print(f"written: {report.FILE.relative_to(Path.cwd())}")
    return 0


def keep(results: Results) -> None:
    """Put on record what was measured, with what was measured before and was not again, and write the report."""
    kept = Results.load(RECORD) if RECORD.exists() else Results()
    kept.replace_runs(results)
    kept.save(RECORD)
    report.write(kept)


def measure(names: list[str] | tuple[str, ...], results: Results, *, quick: bool) -> Iterator[str]:
    """Run some benchmarks, telling how far it is; the name of each when it is done."""
    stage = Stage(QUICK if quick else FULL)
    if not ALONE.issuperset(names):
        print("building the peers, preparing nodes and reviews …", flush=True)
        build_programs()
        check_programs(stage)
    for name in names:
        begun = time.monotonic()
        print(f"{name}: {RUNS[name]} …", end=" ", flush=True)
        importlib.import_module(f"benchmarks.{name}").run(stage, results)
        print(f"{time.monotonic() - begun:.0f} s", flush=True)
        results.measured[name] = f"{results.machine['date']}, {results.machine['tessera']}"
        yield name


if __name__ == "__main__":
    sys.exit(main())
