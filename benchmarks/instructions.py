"""The decision in instructions: the same on a quiet and on a busy machine.

Valgrind counts what the processor would execute. A process that only gets ready is subtracted from one that then
makes decisions, so that starting Python is not counted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks import corpus
from benchmarks.decision import FIRST, JSON, LATER
from benchmarks.processes import ROOT
from benchmarks.results import Results
from benchmarks.stage import Stage

RUN: Final = "instructions"
UNIT: Final = "instructions"
_PASSES: Final = 4  # over all templates
_NODES: Final = 50
_SUBJECTS: Final = {LATER: "later", FIRST: "first", JSON: "json"}

_USUAL: Final = "4 KB"
_CASES: Final = {  # case → where the nodes' devices come from, and `fallback.dra`
    _USUAL: (),
    f"{_USUAL}, device plugins, first-available: no pod is bridged": ("plugin", "first-available"),
    f"{_USUAL}, DRA, extended-resources": ("dra", "extended-resources"),
    f"{_USUAL}, DRA, first-available: 9 of 16 pods are bridged": ("dra", "first-available"),
}


def run(_: Stage, results: Results) -> None:
    """Count for a 4 KB review, where there is Valgrind."""
    if shutil.which("valgrind") is None:
        results.note("instructions are not counted: there is no valgrind in the PATH")
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # counting is slow, and nothing disturbs it
        ready = {case: pool.submit(_count, "json", 0, *words) for case, words in _CASES.items()}
        counts = {
            (case, subject): pool.submit(_count, mode, _PASSES, *words)
            for case, words in _CASES.items()
            for subject, mode in _SUBJECTS.items()
            if case == _USUAL or subject != JSON
        }
    for (case, subject), count in counts.items():
        each = (count.result() - ready[case].result()) / (_PASSES * len(corpus.TEMPLATES))
        results.add(RUN, case, UNIT, subject, [each])


def _count(mode: str, passes: int, *words: str) -> int:
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", sys.executable,
             "-m", "benchmarks.decisions", mode, str(passes), str(_NODES), *words],
            cwd=ROOT.parent, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    line = next(line for line in done.stderr.splitlines() if "Collected :" in line)
    return int(line.rpartition(":")[2])
