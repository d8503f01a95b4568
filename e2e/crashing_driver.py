"""The DRA driver, which ends itself as SIGKILL would: at a step that `CRASH_AT` names, when it comes to it for the n-th time.

`CRASH_AT=prepare: claim read` is that step at once; `CRASH_AT=random` is any step, and any of the first three times.
"""

import os
import random
import signal

from tessera.cli.app import run
from tessera.node.dra import preparing

STEPS = (
    "prepare: claim read",
    "prepare: started is on disk",
    "prepare: CDI spec is on disk",
    "prepare: completed is on disk",
    "unprepare: begun",
    "unprepare: CDI spec is gone",
    "unprepare: entry is gone",
)


def main() -> int:
    """Run the command line as it is, with a fault in it."""
    wanted = os.environ["CRASH_AT"]
    wanted_step, times = (random.choice(STEPS), random.randint(1, 3)) if wanted == "random" else (wanted, 1)
    left = [times]

    def reached(step: str) -> None:
        if step == wanted_step:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    preparing.reached = reached
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
