"""Twenty minutes of random faults.

    make chaos                                                   all parts
    python -m stress.chaos --part cards --minutes 2 --seed 7     one of them, shorter, as seed 7 has it

A seed fixes which faults come, in which order, and what each one hits. When exactly a process is hit depends on the machine.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from e2e.cluster import Cluster, ClusterWithNode

from stress.chaos.cards import CardsPart
from stress.chaos.clocks import JumpingClock
from stress.chaos.fleet import Fleet
from stress.chaos.fleet_faults import faults
from stress.chaos.node import DraPart, NodePart, mounted
from stress.chaos.schedule import Report

NODE_PARTS: Final[dict[str, type[NodePart]]] = {part.kind: part for part in (NodePart, DraPart, CardsPart)}
#: Minutes of each part of a whole run.
MINUTES: Final = {"plugin": 2.5, "dra": 3.0, "cards": 4.5, "fleet": 10.0}
LEAST: Final = 5  # tries of each fault in a whole run


def run_part(name: str, minutes: float, least: int, report: Report) -> None:
    """One part, on a cluster of its own. Its logs are kept where something did not hold."""
    before = len(report.findings)
    with tempfile.TemporaryDirectory(prefix="tessera-chaos-", ignore_cleanup_errors=True) as folder:
        try:
            if name in NODE_PARTS:
                _run_on_node(NODE_PARTS[name], minutes, least, report, Path(folder))
            else:
                _run_fleet(minutes, least, report, Path(folder))
        except Exception as error:  # noqa: BLE001 # the other parts are run, and the tables are printed
            traceback.print_exc()
            report.add(name, f"the run ended: {error!r}")
        if len(report.findings) > before:
            kept = Path("out") / f"chaos-{name}"
            for log in Path(folder).rglob("*.log"):
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(log, kept / log.name)
            report.say(name, f"seed {report.seed}; logs: {kept}")


def _run_on_node(kind: type[NodePart], minutes: float, least: int, report: Report, folder: Path) -> None:
    # mounted before the node is there, whose container runtime mounts files of it
    with mounted(folder / "state", "-t", "tmpfs", "-o", "size=512k", "tmpfs"):
        cluster = ClusterWithNode.start(f"chaos-{kind.kind}-{os.getpid()}")
        try:
            kind(cluster, folder, report).run(minutes, least)
        finally:
            cluster.folder.keep_logs(folder / "cluster")
            cluster.stop()


def _run_fleet(minutes: float, least: int, report: Report, folder: Path) -> None:
    cluster = Cluster.start(f"chaos-fleet-{os.getpid()}")
    try:
        Fleet(cluster, folder, report).run(faults, minutes, least)
    finally:
        cluster.folder.keep_logs(folder / "cluster")
        cluster.stop()


def main() -> None:
    """The command line."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both end a run with everything stopped
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--part", action="append", choices=[*MINUTES], help="may be repeated; default: all of them"
    )
    parser.add_argument("--minutes", type=float, help="of all parts together; default: 20 for all of them")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts = options.part or [*MINUTES]
    whole = sum(MINUTES[name] for name in parts)
    minutes = options.minutes or whole
    report = Report(options.seed)
    print(f"seed {options.seed}, {minutes:g} minutes: {', '.join(parts)}", flush=True)
    ClusterWithNode.prepare()
    JumpingClock.prepare()
    for name in parts:
        # the faults of the device plugin come to the DRA driver, too: together they are often enough
        least = LEAST if minutes >= whole and name != "plugin" else 0
        run_part(name, minutes * MINUTES[name] / whole, least, report)
    JumpingClock.remove_leftovers()
    print(f"\n{report.table()}\n\nseed {options.seed}: {len(report.findings)} things did not hold")
    for finding in report.findings:
        print(f"  {finding}")
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
