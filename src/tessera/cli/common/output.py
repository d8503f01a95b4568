"""What commands print: colours only where a person sees them, tables, and documents in the form that `-o` names.

A command names the forms that it draws itself (`table`, `wide`, …), and gives documents as plain values. Every command prints
documents in the same forms: JSON, YAML, and kubectl's JSONPath templates.

Every command prints through this module. It writes control characters out, because tenants write many of the texts: names, annotations,
messages of Events. `Style` marks colours, and only these marks become sequences that a terminal obeys.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, partialmethod
from typing import IO, TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from tessera.cli.common.options import option
from tessera.core.text import printable_lines

if TYPE_CHECKING:
    from tessera.cli.common.jsonpath import JsonPathTemplate

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_DOCUMENTS: Final = ("json", "yaml")
_JSONPATH: Final = "jsonpath="
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}
# as `HumanDuration` of k8s.io/apimachinery: below so many seconds in this unit, with a smaller one while it matters
_AGES: Final = (
    (120, "s", ""),
    (600, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 86400, "d", "h"),
    (2 * 365 * 86400, "d", ""),
    (8 * 365 * 86400, "y", "d"),
)
_COLOUR: Final = f"\x00{os.urandom(8).hex()}:"  # begins a mark of `Style`; nobody else can know it


class Background(StrEnum):
    """Colours behind a text, by their numbers on a terminal."""

    GREEN = "42"
    YELLOW = "43"
    MAGENTA = "45"
    CYAN = "46"
    WHITE = "47"
    BRIGHT_BLUE = "104"


@dataclass(frozen=True, slots=True)
class Style:
    """Colours, or none of them."""

    enabled: bool

    @classmethod
    def of(cls, stream: IO[str]) -> "Style":
        """Colour only on a terminal that can, and where `NO_COLOR` does not forbid it."""
        forbidden = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(stream.isatty() and not forbidden)

    def _paint(self, code: str, text: str) -> str:
        return f"{_COLOUR}{code}m{text}{_COLOUR}0m" if self.enabled else text

    bold = partialmethod(_paint, "1")  # headings
    dim = partialmethod(_paint, "2")  # what matters less
    good = partialmethod(_paint, "32")  # what was added, chosen, admitted
    bad = partialmethod(_paint, "31")  # what was removed, refused, missing
    note = partialmethod(_paint, "33")  # what a person should notice

    def on(self, background: Background, text: str) -> str:
        """Black text on a colour."""
        return self._paint(f"30;{background}", text)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def headed(rows: Sequence[tuple[str, ...]], style: Style, *, headers: bool = True) -> list[str]:
    """The same; the first row is the heading, and is left out where none is wanted."""
    heading, *lines = table(rows)
    return [style.bold(heading), *lines] if headers else lines


def format_age(now: float, since: float | None) -> str:
    """Write how long ago something began as kubectl does: `90s`, `4m5s`, `7h10m`, `3d`, or `<unknown>`."""
    if not since:
        return "<unknown>"
    seconds = max(0, int(now - since))
    for below, unit, parts in _AGES:
        if seconds < below:
            rest = seconds % _SECONDS[unit] // _SECONDS[parts] if parts else 0
            return f"{seconds // _SECONDS[unit]}{unit}" + (f"{rest}{parts}" if rest else "")
    return f"{seconds // _SECONDS['y']}y"


def block(label: str, texts: Iterable[str]) -> list[str]:
    """Lines with a label before the first of them."""
    return [f"  {(label if at == 0 else ''):<12}{text}".rstrip() for at, text in enumerate(texts)]


def make_safe(line: str) -> str:
    """Put a text on one line, write its control characters out, and turn the marks of `Style` into the terminal's sequences."""
    plain, *coloured = line.replace("\n", " ").split(_COLOUR)
    parts = (part.partition("m") for part in coloured)
    return printable_lines(plain) + "".join(f"\x1b[{code}m{printable_lines(rest)}" for code, _, rest in parts)


def echo(lines: Iterable[str]) -> None:
    """Print lines, each as soon as there is one; click leaves colours out where they are not shown."""
    for line in lines:
        click.echo(make_safe(line))


def warn(*lines: str) -> None:
    """Print lines on standard error."""
    for line in lines:
        click.echo(make_safe(line), err=True)


def draw_screen(lines: Iterable[str]) -> None:
    """Clear the terminal and print lines on it."""
    click.echo("\x1b[H\x1b[J" + "\n".join(map(make_safe, lines)), color=True)


def print_document(text: str, *, ends_line: bool = True) -> None:
    """Print a text for programs. A terminal gets it without control characters; a pipe and a file get it as it is."""
    click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=ends_line)


class _Lenient:
    """A stream whose reader may leave, or whose disk may be full: what is printed then goes nowhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._tried(partial(self._stream.write, text)) or 0

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def _tried(self, print_: Callable[[], T]) -> T | None:
        try:
            return print_()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            return None


@contextmanager
def whoever_reads() -> Iterator[None]:
    """What is done meanwhile goes on although nobody takes its output any more (`… | head`, a full disk): for commands that change a cluster."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Lenient(one)) for one in streams)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = streams


@dataclass(frozen=True, slots=True)
class Output:
    """The form that was asked for."""

    form: str
    template: "JsonPathTemplate | None" = None

    @property
    def is_document(self) -> bool:
        """Whether it is one of the forms that every document has."""
        return self.form in _DOCUMENTS or self.template is not None

    def text(self, document: Any, *, one_of_many: bool = False) -> str:
        """A document in this form; where several follow each other, JSON takes a line and YAML a separator."""
        import msgspec

        if self.form == "json":
            encoded = msgspec.json.encode(document)
            text = (encoded if one_of_many else msgspec.json.format(encoded, indent=2)).decode()
            return printable_lines(text, escape=_escape_in_json)
        plain = msgspec.to_builtins(document)  # mappings, lists and texts, as JSON would have them
        if self.template is not None:
            return self.template.render(plain)
        from tessera.protocol import yaml

        return ("---\n" if one_of_many else "") + yaml.dump(plain).rstrip("\n")

    def print(self, document: Any) -> None:
        """Print a document; a template ends its lines itself, as with kubectl."""
        print_document(self.text(document), ends_line=self.template is None)

    def show(self, document: Callable[[], Any], drawn: Callable[[Style], Iterable[str]]) -> None:
        """Print the document where one was asked for, else the lines that the command draws."""
        if self.is_document:
            self.print(document())
        else:
            echo(drawn(Style.of(sys.stdout)))


def _escape_in_json(character: str) -> str:
    """A character as JSON writes it in ASCII: one escape, or two surrogates."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class _Form(click.ParamType[Output]):
    """One of some names, or `jsonpath=` and a template."""

    name = "form"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.names)}|{_JSONPATH}…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Output:
        if isinstance(value, Output):
            return value
        if value in self.names:
            return Output(value)
        if not value.startswith(_JSONPATH):
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.names))}, {_JSONPATH}…", param, ctx)
        from tessera.cli.common.jsonpath import JsonPathTemplate

        return Output("jsonpath", JsonPathTemplate(value.removeprefix(_JSONPATH)))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(n) for n in (*self.names, _JSONPATH) if n.startswith(incomplete)]


OUTPUT: Final = "Output"  # the heading of these options in help


def output_option(*drawn: str, default: str | None = None, text: str = "") -> Callable[[F], F]:
    """Give a command `-o`: the forms that it draws itself, then those of every document; it gets an `Output`."""
    names = (*drawn, *_DOCUMENTS)
    text = text or "The output format; jsonpath={…} takes kubectl's templates."
    return option("-o, --output", text, type=_Form(names), default=default or names[0], group=OUTPUT)


no_headers_option: Final = option("--no-headers", "Print tables without headings.", group=OUTPUT)
