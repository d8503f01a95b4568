"""The decision in instructions: the same on a quiet and on a busy machine.

Valgrind counts what the processor would execute. A process that only gets ready is subtracted from one that then
makes decisions, so that starting Python is not counted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from typing import Final

from benchmarks import corpus
from benchmarks.decision import FIRST, JSON, LATER
from benchmarks.processes import ROOT
from benchmarks.results import Results
from benchmarks.stage import Stage

RUN: Final = "instructions"
UNIT: Final = "instructions"
_PASSES: Final = 4  # over all templates
_NODES: Final = 100
_SUBJECTS: Final = {LATER: "later", FIRST: "first", JSON: "json"}


def run(_: Stage, results: Results) -> None:
    """Count for a 4 KB review, where there is Valgrind."""
    if shutil.which("valgrind") is None:
        results.note("instructions are not counted: there is no valgrind in the PATH")
        return
    ready = _count("json", 0)
    for subject, mode in _SUBJECTS.items():
        count = (_count(mode, _PASSES) - ready) / (_PASSES * len(corpus.TEMPLATES))
        results.add(RUN, "4 KB", UNIT, subject, [count])


def _count(mode: str, passes: int) -> int:
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", sys.executable,
             "-m", "benchmarks.decisions", mode, str(passes), str(_NODES)],
            cwd=ROOT.parent, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    line = next(line for line in done.stderr.splitlines() if "Collected :" in line)
    return int(line.rpartition(":")[2])
