"""`RESULTS.md`: what was measured, written by the tool alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks import (
    autopilot,
    autopilot_page,
    cards,
    connections,
    controller,
    decision,
    dra,
    free,
    full,
    growth,
    https,
    instructions,
    kube,
    limit,
    page,
    planning,
    plots,
    readiness,
    scheduling,
    startup,
    storm,
    tls,
    tools,
    view,
    worth,
)
from benchmarks.aims import AIMS
from benchmarks.results import AIOHTTP, PARTIAL, TESSERA, USUAL, UVICORN, Results

FILE: Final = Path(__file__).parent / "RESULTS.md"
PLOTS: Final = Path(__file__).parent / "plots"

_HEAD: Final = """# Results

Written by `make bench`; [how it is measured](../docs/performance.md). Values are medians of the rounds. A ratio is taken
within a round, where both were measured in turns: its median, and in brackets its extremes. Values of other machines
differ, ratios much less.
"""
_TITLES: Final = {
    decision.RUN: "The decision in process: bytes in, bytes out",
    instructions.RUN: "The decision in instructions",
    https.RUN: "Over HTTPS, the server on one core",
    connections.RUN: "Connections that are kept: what each takes",
    tls.RUN: "The same server with our TLS and with the event loop's",
    view.RUN: "Filling the view",
    storm.RUN: "A watch storm: 5,000 node updates a minute, every tenth changes what is offered",
    free.RUN: "What is free: all pods followed (`fallback.when: full`), beside a Go informer of nodes and pods",
    full.RUN: "A decision by what is free (`fallback.when: full`) beside one by what is offered, nothing remembered",
    startup.RUN: "Starting",
    growth.RUN: "Growth",
    tools.RUN: "The tools on clusters of several sizes: 12 pods for each node, nodes nearly all different",
    controller.RUN: "The controller: all reconcilers, one MigLayout of all nodes in mode Auto",
    planning.RUN: "Planning: some of the demand does not fit, every plan is proven best",
    cards.RUN: "Real cards, on a stand-in for NVIDIA's driver",
    dra.RUN: "The DRA driver, between a stand-in kubelet and a stand-in API server",
    scheduling.RUN: "Pods with claims through a real scheduler",
    readiness.RUN: "Pods ready on a real node",
    kube.RUN: "Through a real kube-apiserver, one client, dry runs",
    page.RUN: "The page of a large cluster, in a real browser",
    worth.RUN: "What fallback is worth: seven simulated days of demand on 16 cards",
    autopilot.RUN: "What layouts that follow demand are worth: seven simulated days, ten seeds",
}
_BASES: Final = {  # what the others are compared with, in each table
    decision.RUN: decision.JSON,
    instructions.RUN: decision.JSON,
    https.RUN: TESSERA,
    connections.RUN: TESSERA,
    tls.RUN: tls.OURS,
    view.RUN: TESSERA,
    free.RUN: TESSERA,
    full.RUN: full.MISSING,
    readiness.RUN: readiness.PLUGIN,
    kube.RUN: kube.NONE,
    autopilot.RUN: autopilot.STATIC,
}


def write(results: Results) -> None:
    """Write the report and its pictures, and what pages say by the record."""
    PLOTS.mkdir(exist_ok=True)
    pictures = list(_draw(results))
    parts = [_HEAD, _machine(results), _aims(results), limit.section(results)]
    for run in sorted(results.runs(), key=list(_TITLES).index):
        parts.append(f"## {_TITLES[run]}\n")
        if run in results.measured:
            parts.append(f"Measured {results.measured[run]}.\n")
        parts += [_table(results, run, unit) for unit in _units(results, run)]
        parts += [
            f"![{_PICTURES[name][2]}](plots/{name})\n" for name in pictures if _PICTURES[name][0] == run
        ]
    FILE.write_text("\n".join(parts))
    autopilot_page.write(results)


def _machine(results: Results) -> str:
    lines = [f"| {key} | {value} |" for key, value in results.machine.items()]
    notes = "".join(f"- {note}\n" for note in results.notes)
    return "\n".join(["| | |", "|---|---|", *lines, ""]) + (f"\n{notes}" if notes else "")


def _aims(results: Results) -> str:
    lines = ["## Aims\n", "| aim | wanted | measured | |", "|---|---|---|---|"]
    for aim in AIMS:
        value = aim.measure.of(results)
        if value is not None:
            lines.append(
                f"| {aim.text} | {aim.bound} | {value} | {'met' if aim.met(value.median) else '**short**'} |"
            )
    return "\n".join([*lines, ""])


def _units(results: Results, run: str) -> list[str]:
    return list(dict.fromkeys(one.unit for one in results.series if one.run == run))


def _table(results: Results, run: str, unit: str) -> str:
    """One quantity: cases down, subjects across, with their ratio to the base where there is one."""
    series = [one for one in results.series if (one.run, one.unit) == (run, unit)]
    subjects = list(dict.fromkeys(one.subject for one in series))
    base = _BASES.get(run, "")
    lines = [f"| {unit} | {' | '.join(subjects)} |", "|---" * (len(subjects) + 1) + "|"]
    for what in dict.fromkeys(one.what for one in series):
        cells = []
        for subject in subjects:
            found = results.find(run, what, unit, subject)
            ratio = results.ratio(run, what, unit, subject, base) if subject != base else None
            cells.append("" if found is None else _shown(found.median) + (f", × {ratio}" if ratio else ""))
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_PICTURES: Final = {  # file → benchmark, curve, title, x, y
    "latency.svg": (https.RUN, "latency", "Answers that take longer, 4 KB, 64 connections", "milliseconds", "percent of requests"),
    "growth.svg": (growth.RUN, "growth", "One decision", "nodes", "microseconds"),
    "planning.svg": (planning.RUN, "planning", "One plan, eight cards to a node", "cards", "ms of processor time"),
    "worth-large.svg": (worth.RUN, "worth-large", "Tasks that wait longer, large mix, load 0.9", "minutes", "percent of tasks"),
    "worth-small.svg": (worth.RUN, "worth-small", "Tasks that wait longer, small mix, load 0.9", "minutes", "percent of tasks"),
    "autopilot-large.svg": (autopilot.RUN, "autopilot-large", "Tasks that wait longer, large mix, load 0.8, 16 cards", "minutes", "percent of tasks"),
    "autopilot-small.svg": (autopilot.RUN, "autopilot-small", "Tasks that wait longer, small mix, load 0.8, 16 cards", "minutes", "percent of tasks"),
    "autopilot-swinging.svg": (autopilot.RUN, "autopilot-swinging", "Tasks that wait longer, swinging mix, load 0.8, 16 cards", "minutes", "percent of tasks"),
    "memory.svg": (growth.RUN, "memory", "Resident size of the whole webhook", "nodes", "MiB"),
}  # fmt: skip


def _draw(results: Results) -> Iterable[str]:
    """Draw all pictures, and name them."""
    for name, (_, curve, title, x, y) in _PICTURES.items():
        lines = results.curves.get(curve)
        if not lines:
            continue
        shown: dict[str, plots.Points] = dict(lines)
        if curve == "latency":
            shown = {
                s: plots.slower_than(lines[s])
                for s in (TESSERA, USUAL, PARTIAL, AIOHTTP, UVICORN, https.FLOOR)
                if s in lines
            }
        plots.plot(PLOTS / name, title, x, y, shown)
        yield name
