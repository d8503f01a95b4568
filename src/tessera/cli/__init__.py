"""The `tessera` command: one file or one folder per command, and `common` for what they share.

What belongs here: options, help texts, tables, colours, exit codes, and calling the parts of the other packages. What does not:
anything that decides. That is tested without a terminal, in the packages below.
"""

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from tessera.cli.app import run

    sys.exit(run())
