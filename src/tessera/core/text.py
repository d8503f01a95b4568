"""Texts as messages may carry them: short, and without control characters."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tessera.core.errors import InvalidInput

MOST_SHOWN: Final = 60  # characters: enough to recognize a value by, and a message of one line stays one
_LONGEST: Final = 300  # characters of a message that a person reads
WARNING_LENGTH: Final = 120  # characters: kubectl and the API server cut longer warnings


def escaped(text: str, most: int = MOST_SHOWN) -> str:
    """The beginning of a text in printable ASCII, with `…` where more of it follows."""
    return text[:most].encode("unicode_escape").decode("ascii") + ("…" if len(text) > most else "")


def quoted(text: str, most: int = MOST_SHOWN) -> str:
    """The same in quotation marks; `…` stands behind them."""
    shown = escaped(text[:most], most).replace('"', '\\"')
    return f'"{shown}"' + ("…" if len(text) > most else "")


def printable(text: str) -> str:
    """A text on one line, in which a terminal finds nothing to obey."""
    return printable_lines(" ".join(text.split()))


def printable_lines(text: str, escape: Callable[[str], str] = escaped) -> str:
    """A text in which control and formatting characters are written out; only ends of lines stay."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        character if character == "\n" or character.isprintable() else escape(character) for character in text
    )


def number_of(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def counts_in_words(counts: Iterable[tuple[object, int]]) -> str:
    """`2 × 1g.10gb, 1 × 3g.40gb`."""
    return ", ".join(f"{number} × {what}" for what, number in counts)


def first_of(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def nodes_named(names: Sequence[str]) -> str:
    """`node a`, `2,000 nodes (a, b, c and 1997 more)`."""
    return f"node {names[0]}" if len(names) == 1 else f"{len(names):,} nodes ({first_of(names, 3)})"


def age(now: float, since: float) -> str:
    """How long something has been so: `for 3 h`."""
    if not since:
        return "since when is not known"
    passed = max(0, int(now - since))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"for {passed // length} {unit}"
    return f"for {passed} s"


def duration(seconds: float) -> str:
    """Seconds as a duration is written: `30s`, `1h30m`."""
    hours, minutes, left = int(seconds) // 3600, int(seconds) // 60 % 60, int(seconds) % 60
    return "".join(f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (left, "s")) if n) or "0s"


def seconds_in(text: str) -> float:
    """The seconds of a duration such as `90s` or `1h30m`; `InvalidInput` for what is none."""
    match = re.fullmatch(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,5})s)?", text, re.ASCII)
    if match is None or not text:
        raise InvalidInput(f"{quoted(text)} is not a duration such as 30s, 2m or 1h")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds)


def one_line(message: str) -> str:
    """A message on one line that a person reads."""
    return shortened(" ".join(message.split()), _LONGEST)


def cut_warning(warning: str) -> str:
    """A warning, cut to what kubectl and the API server let through."""
    return shortened(warning, WARNING_LENGTH)


def shortened(text: str, most: int) -> str:
    """A text of so many characters at most: it ends after a whole word and a whole `code span`, with ` …` where more followed."""
    if len(text) <= most:
        return text
    head = text[: most - 1].rpartition(" ")[0]
    if head.count("`") % 2:
        head = head[: head.rindex("`")]
    return f"{head.rstrip()} …" if head.strip() else text[: most - 1] + "…"
