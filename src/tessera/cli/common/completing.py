"""What the shell offers for the values of options and arguments: files, names that Tessera knows, names that a cluster has.

A cluster has a second to answer. Where it does not, the shell offers nothing and prints no error.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from tessera.core.errors import TesseraError

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

_TIMEOUT: Final = 1.0  # seconds: a person who has pressed Tab waits
_MOST: Final = 500  # names of one kind: more than that are of no use in a shell

_Items = list[CompletionItem[str]]
_Complete = Callable[[click.Context, click.Parameter, str], _Items]


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """Let the shell complete the name of a file or folder; for click's `shell_complete`."""
    return [CompletionItem(incomplete, type="file")]


def names(known: Callable[[], Iterable[str]]) -> _Complete:
    """Complete a name of some that are known, however it is capitalised; they are asked for when they are needed."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
        return _starting(known(), incomplete)

    return complete


def commands(ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """Complete the words of a command, one after the other."""
    here = ctx.find_root().command
    for word in ctx.params.get("words") or ():
        found = here.get_command(ctx, word) if isinstance(here, click.Group) else None
        if found is None:
            return []
        here = found
    return _starting(here.list_commands(ctx) if isinstance(here, click.Group) else (), incomplete)


def product_names() -> Iterable[str]:
    """Products as a person types them."""
    from tessera.core.mig.geometry import PRODUCTS

    return (product.typed_name for product in PRODUCTS)


def profile_names() -> Iterable[str]:
    """The profiles of all products, each once."""
    from tessera.core.mig.geometry import PRODUCTS

    return map(str, sorted({profile for product in PRODUCTS for profile in product.profiles}))


resources: Final = names(lambda: ["gpu", *profile_names()])  # in their short form


def counts_or_files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """Complete the last profile of counts such as `2g.20gb=2,3g`; what begins otherwise may be a file."""
    before, comma, last = incomplete.rpartition(",")
    meant = _starting(profile_names(), last) if last else []
    found = [CompletionItem(f"{before}{comma}{one.value}=") for one in meant]
    return found or [CompletionItem(incomplete, type="file")]


def layouts(ctx: click.Context, param: click.Parameter, incomplete: str) -> _Items:
    """Complete where a layout comes from: nodes, and without --cluster also counts or files."""
    if ctx.params.get("in_cluster"):
        return nodes(ctx, param, incomplete)
    named = nodes(ctx, param, incomplete) if incomplete and "/" not in incomplete else []
    return named or counts_or_files(ctx, param, incomplete)


def contexts(ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """Complete a context of the kubeconfig."""
    from tessera.kube.access.kubeconfig import known_contexts

    with suppress(TesseraError, OSError):
        return _starting(known_contexts(ctx.params.get("kubeconfig")), incomplete)
    return []


def listed(path: str) -> _Complete:
    """Complete the name of an object of the cluster that the other options name."""
    return lambda ctx, _param, incomplete: _in_cluster(ctx, path, incomplete)


nodes: Final = listed("/api/v1/nodes")
namespaces: Final = listed("/api/v1/namespaces")


def targets(ctx: click.Context, _param: click.Parameter, incomplete: str) -> _Items:
    """Complete a pod, or a kind and then its name, of the namespace that the other options name."""
    from tessera.diagnosis.reading import KINDS, objects_of

    kind, slash, name = incomplete.rpartition("/")
    namespace = ctx.params.get("namespace") or "default"
    if slash:
        path = objects_of(kind, namespace)
        return [CompletionItem(f"{kind}/{one.value}") for one in _in_cluster(ctx, path, name)] if path else []
    kinds = [CompletionItem(f"{kind}/") for kind in KINDS if incomplete and kind.startswith(incomplete)]
    return [*_in_cluster(ctx, objects_of("pod", namespace), incomplete), *kinds]


def _starting(known: Iterable[str], incomplete: str) -> _Items:
    return [CompletionItem(name) for name in known if name.lower().startswith(incomplete.lower())]


def _in_cluster(ctx: click.Context, path: str, incomplete: str) -> _Items:
    import asyncio

    import msgspec

    from tessera.cli.common.options import ClusterChoice
    from tessera.kube.errors import NOT_JSON

    given = {name: ctx.params.get(name) for name in ("kubeconfig", "context", "user")}
    choice = ClusterChoice(**given, groups=ctx.params.get("groups") or ())

    async def ask(client: "Client") -> bytes:
        async with asyncio.timeout(_TIMEOUT):
            return await client.get(path, {"limit": _MOST})

    with suppress(TesseraError, OSError, TimeoutError, KeyError, TypeError, *NOT_JSON):
        found = msgspec.json.decode(choice.run(ask))
        return _starting((one["metadata"]["name"] for one in found["items"]), incomplete)
    return []
