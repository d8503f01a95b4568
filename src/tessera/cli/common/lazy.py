"""Commands that are imported when they are used, so that help and shell completion stay quick."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

# name → (module with a click command called `command`, one line of help)
Table = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group that knows its commands from a table, in the order in which a person would want to meet them."""

    def __init__(self, *args: Any, table: Table, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, only now."""
        if cmd_name not in self._table:
            return None
        command: click.Command = importlib.import_module(self._table[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a word that is none, say which one may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], self._table, n=1)
            if not close or type(error) is click.NoSuchOption:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])
