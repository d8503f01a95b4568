"""Commands that are imported when they are used, so that help and shell completion stay quick."""

import importlib
from collections import UserDict
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

# name → (where it is in this package, as `module:function`, and one line of help)
Table = Mapping[str, tuple[str, str]]


class _Commands(UserDict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        module, _, function = self.data[name][0].partition(":")
        return getattr(importlib.import_module(f"tessera.cli.{module}"), function)


class LazyGroup(click.Group):
    """A group that knows its commands from a table, in the order in which a person would want to meet them.

    Help and completion list them without importing any.
    """

    def __init__(self, *args: Any, table: Table, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands = _Commands(table)
        self._lines = [(name, text) for name, (_, text) in table.items()]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        offered = [
            CompletionItem(name, help=text) for name, text in self._lines if name.startswith(incomplete)
        ]
        return offered + click.Command.shell_complete(self, ctx, incomplete)
