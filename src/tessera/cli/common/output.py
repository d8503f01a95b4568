"""What commands print: colours only where a person sees them, tables, and documents in the form that `-o` names.

A command names the forms that it draws itself (`table`, `wide`, …), and gives documents as plain values. Every command prints
documents in the same forms: JSON, YAML, and kubectl's JSONPath templates.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, partialmethod
from typing import IO, TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from tessera.cli.common.options import option

if TYPE_CHECKING:
    from tessera.cli.common.jsonpath import JsonPathTemplate

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_DOCUMENTS: Final = ("json", "yaml")
_JSONPATH: Final = "jsonpath="


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
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled else text

    bold = partialmethod(_paint, "1")  # headings
    dim = partialmethod(_paint, "2")  # what matters less
    good = partialmethod(_paint, "32")  # what was added, chosen, admitted
    bad = partialmethod(_paint, "31")  # what was removed, refused, missing
    note = partialmethod(_paint, "33")  # what a person should notice


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


def block(label: str, texts: Iterable[str]) -> list[str]:
    """Lines with a label before the first of them."""
    return [f"  {(label if at == 0 else ''):<12}{text}".rstrip() for at, text in enumerate(texts)]


def echo(lines: Iterable[str]) -> None:
    """Print lines, each as soon as there is one; click leaves colours out where they are not shown."""
    for line in lines:
        click.echo(line)


def warn(*lines: str) -> None:
    """Print lines on standard error."""
    for line in lines:
        click.echo(line, err=True)


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
            return (encoded if one_of_many else msgspec.json.format(encoded, indent=2)).decode()
        plain = msgspec.to_builtins(document)  # mappings, lists and texts, as JSON would have them
        if self.template is not None:
            return self.template.render(plain)
        from tessera.protocol import yaml

        return ("---\n" if one_of_many else "") + yaml.dump(plain).rstrip("\n")

    def print(self, document: Any) -> None:
        """Print a document; a template ends its lines itself, as with kubectl."""
        click.echo(self.text(document), nl=self.template is None)

    def show(self, document: Callable[[], Any], drawn: Callable[[Style], Iterable[str]]) -> None:
        """Print the document where one was asked for, else the lines that the command draws."""
        if self.is_document:
            self.print(document())
        else:
            echo(drawn(Style.of(sys.stdout)))


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


def output_option(*drawn: str, default: str | None = None, text: str = "") -> Callable[[F], F]:
    """Give a command `-o`: the forms that it draws itself, then those of every document; it gets an `Output`."""
    names = (*drawn, *_DOCUMENTS)
    text = text or "The output format; jsonpath={…} takes kubectl's templates."
    return option("-o, --output", text, type=_Form(names), default=default or names[0])


no_headers_option: Final = option("--no-headers", "Print tables without headings.")
