"""The `tessera` command: one file per command, and the one place that wires things together.

What belongs here: options, help texts, reading and writing of files and terminals, exit codes, and putting the
parts of the other packages together. What does not: rules of any kind.
"""

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from tessera.cli.app import run

    sys.exit(run())
