"""The help of a command: its options under headings, and those that name a cluster in one line."""

from typing import Any, Final

import click

CONNECTION: Final = "Connection"
_GENERAL: Final = "Options"


class GroupedOption(click.Option):
    """An option that help lists under the heading of its group."""

    def __init__(self, *args: Any, group: str = _GENERAL, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group


class Command(click.Command):
    """A command whose help has a section for each group of options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; click's error about an option without its value does not name the command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group, and connection options by name alone. Arguments have no section.

        The options without a group come first. A section that has only --help comes last.
        """
        sections: dict[str, list[tuple[str, str]]] = {_GENERAL: []}
        connection = []
        for parameter in self.get_params(ctx):
            record, group = parameter.get_help_record(ctx), getattr(parameter, "group", _GENERAL)
            if group == CONNECTION:
                connection.append(parameter.opts[-1])
            elif isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(group, []).append(record)
        if len(sections[_GENERAL]) == 1:
            sections[_GENERAL] = sections.pop(_GENERAL)
        for group, records in sections.items():
            with formatter.section(group):
                formatter.write_dl(records)
        if connection:
            with formatter.section(CONNECTION):
                formatter.write_text(f"{', '.join(connection)} (see tessera options)")
