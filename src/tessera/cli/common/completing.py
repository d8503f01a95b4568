"""What the shell offers for the values of options and arguments: files, and names from lists that Tessera knows."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Let the shell complete the name of a file or folder; for click's `shell_complete`."""
    return [CompletionItem(incomplete, type="file")]


def names(
    known: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]:
    """Complete a name of some that are known, however it is capitalised; they are asked for when they are needed."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        return [CompletionItem(name) for name in known() if name.lower().startswith(incomplete.lower())]

    return complete


def product_names() -> Iterable[str]:
    """Products as a person types them: in one word, and a simulated one as its label has it."""
    from tessera.core.mig.geometry import PRODUCTS

    return (product.short_name.removeprefix("Simulated ").replace(" ", "-") for product in PRODUCTS)
