"""Whether the others say what we say: an answer that is wrong is no comparison."""

import base64
import json
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from benchmarks import corpus
from benchmarks.processes import PROGRAMS, SERVER_CORE, Unavailable, on_core
from benchmarks.stage import Stage
from tessera.core.admission.policy import Policy
from tessera.webhook.endpoint import Admission


def check_answers(subject: str, answers: Iterable[Any], size: str, kind: corpus.Kind) -> None:
    """Compare a server's answers to the corpus with the decision in process."""
    for number, (theirs, ours) in enumerate(zip(answers, _ours(size, kind), strict=True)):
        if _plain(theirs) != ours:
            raise Unavailable(
                f"{subject} answers template {number} ({size}) otherwise:\n{_plain(theirs)}\nwe say:\n{ours}"
            )


def check_programs(stage: Stage) -> None:
    """Compare what the Go programs decide in process."""
    for size in corpus.SIZES:
        for program in ("usual", "partial"):
            command = on_core(SERVER_CORE, [
                PROGRAMS / "decision", "-as", program, "-nodes", stage.nodes(), "-reviews", stage.reviews(size)
            ])  # fmt: skip
            done = subprocess.run(command, capture_output=True, check=True)
            check_answers(program, map(json.loads, done.stdout.splitlines()), size, "own annotation")


@lru_cache(maxsize=1)
def _admission() -> Admission:
    return Admission(corpus.offers(), Policy())


@lru_cache(maxsize=8)
def _ours(size: str, kind: corpus.Kind) -> list[Any]:
    return [_plain(json.loads(_admission().answer(body))) for body in corpus.reviews(size, kind)]


def _plain(answer: Any) -> Any:
    """An answer without what says nothing: which uid, how the patch is wrapped, Go's empty metadata of a status."""
    response = dict(answer["response"])
    response.pop("uid")
    if "patch" in response:
        patch = json.loads(base64.b64decode(response["patch"]))
        # The peers keep the record alone, and not what was asked for by container, to their advantage.
        response["patch"] = [one for one in patch if not one["path"].endswith("~1asked")]
    if "status" in response:
        # A rejection is compared by what it is. Its sentence is not: ours names every candidate with its reason, the
        # peers' is shorter, to their advantage.
        response["status"] = {
            key: value for key, value in response["status"].items() if value != {} and key != "message"
        }
    return {**answer, "response": response}
