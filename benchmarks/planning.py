"""Planning: a plan against the number of cards and of kinds, and the whole command on a large cluster's file."""

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.corpus import waiting
from benchmarks.results import TESSERA, Results, in_turns
from benchmarks.stage import Stage
from tessera.core.mig.placement import maximal_patterns
from tessera.core.planning.kinds import NodeCards, QueuedProfile, card_of
from tessera.core.planning.planner import Question, plan
from tessera.solver import highs

RUN: Final = "planning"
CARDS: Final = (100, 1_000, 10_000, 40_000)
KINDS: Final = (2, 10, 50)
UNIT: Final = "ms of processor time"
COMMAND: Final = "mig plan, 5,000 nodes, 57,000 running and 3,000 waiting pods"
DEFRAGMENT: Final = "mig defragment 7g.141gb=300, the same"
SECONDS: Final = "s of processor time"
PEAK: Final = "MiB at most"
_TESSERA: Final = Path(sys.executable).parent / "tessera"


def case(cards: int, kinds: int) -> str:
    """How a case is called."""
    return f"{cards:,} cards of {kinds} kinds"


def run(stage: Stage, results: Results) -> None:
    """Plans in process; whole commands on a file."""
    rounds = min(stage.effort.rounds, 3)
    for kinds in KINDS:
        measures = {str(cards): partial(_plan, cards, kinds) for cards in CARDS}
        for cards, found in in_turns(rounds, measures).items():
            results.add(RUN, case(int(cards), kinds), UNIT, TESSERA, found[UNIT])
    results.curves["planning"] = {
        f"{kinds} kinds": [
            [cards, one.median]
            for cards in CARDS
            if (one := results.find(RUN, case(cards, kinds), UNIT, TESSERA)) is not None
        ]
        for kinds in KINDS
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.json"
        with file.open("wb") as out:
            out.writelines(waiting.cluster_file())
        commands = {
            COMMAND: ["mig", "plan", "--from", str(file)],
            DEFRAGMENT: ["mig", "defragment", "7g.141gb=300", "--from", str(file)],
        }
        for what, arguments in commands.items():
            for found in in_turns(rounds, {TESSERA: partial(_command, arguments)}).values():
                for unit in (SECONDS, PEAK):
                    results.add(RUN, what, unit, TESSERA, found[unit])


def _plan(cards: int, kinds: int) -> dict[str, float]:
    """A plan for eight cards to a node, from nothing: what an earlier one has counted out is forgotten."""
    given = waiting.cards_of(cards, kinds)
    wanted = {QueuedProfile(profile): count for profile, count in waiting.demand_for(cards).items()}
    places = [
        NodeCards(f"node-{first}", range(first, min(first + waiting.CARDS, cards)))
        for first in range(0, cards, waiting.CARDS)
    ]
    maximal_patterns.cache_clear()
    card_of.cache_clear()
    begun = time.process_time()
    found = plan(Question(wanted, given, places), highs)
    spent = time.process_time() - begun
    assert found.optimal
    return {UNIT: spent * 1000}


def _command(arguments: list[str]) -> dict[str, float]:
    process = subprocess.Popen([_TESSERA, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 3)
    return {SECONDS: usage.ru_utime + usage.ru_stime, PEAK: usage.ru_maxrss / 1024}
