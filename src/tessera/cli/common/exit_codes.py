"""How every command ends: the exit codes, and what each of them means."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """The result of a command."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NO = 3
    HUNG_UP = 129  # 128 and the signal's number, as shells report it
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Final = {
    ExitCode.DONE: "done, or the answer is yes",
    ExitCode.FAILED: "it could not be done: no cluster, a failed call or write, declined, too late",
    ExitCode.BAD_INPUT: "the input is wrong: an option, a file, a value, a name that does not exist",
    ExitCode.NO: "the answer is no: rejected, unhealthy, does not fit, below a threshold",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}
