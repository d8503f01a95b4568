"""Times as people type them: `90`, `90s`, `5m`, `1h30m`."""

import re
from typing import Final

import click

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", re.ASCII)


class Duration(click.ParamType[float]):
    """Seconds, more than none."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read `5m`."""
        if isinstance(value, (int, float)):
            return float(value)
        text, seconds, position = str(value).strip(), 0.0, 0
        while match := _PART.match(text, position):
            seconds += float(match[1]) * _UNITS[match[2]]
            position = match.end()
        if position != len(text) or seconds <= 0:
            self.fail(f'"{text}" is not a time such as 90s, 5m or 1h30m', param, ctx)
        return seconds
