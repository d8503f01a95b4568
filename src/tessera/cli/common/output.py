"""`-o`: the forms in which commands print what they found, and the one place where documents become text.

A command names the forms that it draws itself (`table`, `wide`, …), and gives documents as plain values. Every command prints
documents in the same forms: JSON, YAML, and kubectl's JSONPath templates.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from tessera.cli.common.options import option
from tessera.cli.common.terminal import Style, echo

if TYPE_CHECKING:
    from tessera.cli.common.jsonpath import Template

F = TypeVar("F", bound=Callable[..., Any])

_DOCUMENTS: Final = ("json", "yaml")
_JSONPATH: Final = "jsonpath="


@dataclass(frozen=True, slots=True)
class Output:
    """The form that was asked for."""

    form: str
    template: "Template | None" = None

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
        from tessera.cli.common.jsonpath import Template

        return Output("jsonpath", Template(value.removeprefix(_JSONPATH)))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(n) for n in (*self.names, _JSONPATH) if n.startswith(incomplete)]


def output_option(*drawn: str, default: str | None = None, help: str = "") -> Callable[[F], F]:  # noqa: A002 # as click has it
    """Give a command `-o`: the forms that it draws itself, then those of every document; it gets an `Output`."""
    names = (*drawn, *_DOCUMENTS)
    text = help or "The output format; jsonpath={…} takes kubectl's templates."
    return option("-o, --output", text, type=_Form(names), default=default or names[0])


no_headers_option: Final = option("--no-headers", "Print tables without headings.")
