"""`tessera certs`: the webhook's own certificate authority."""

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.output import Output, no_headers_option, output_option
from tessera.cli.common.terminal import Style, table
from tessera.core.errors import TesseraError

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client
    from tessera.webhook.certificates.rotation import Authorities
    from tessera.webhook.certificates.store import KubeStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_TRIES: Final = 5  # when another client changes the Secret at the same moment

_WHERE: Final[tuple[Callable[[Any], Any], ...]] = (
    cluster_options,
    click.option(
        "-n",
        "--namespace",
        default="gpu-webhook",
        show_default=True,
        shell_complete=completing.namespaces,
        help="The webhook's own namespace.",
    ),
    click.option(
        "--ca-secret", default="gpu-webhook-ca", show_default=True, help="The Secret that keeps it."
    ),
    click.option(
        "--webhook-configuration",
        default="gpu-allocation-webhook",
        show_default=True,
        help="The MutatingWebhookConfiguration that trusts it.",
    ),
)


def _where(function: F) -> F:
    """The options that say which cluster, and which objects in it."""
    for option in reversed(_WHERE):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Show, rotate and export the webhook's own certificate authority.

    The webhook makes it, renews it and publishes it by itself; these commands look at it, or make it change now.
    """


@command.command()
@output_option("table")
@no_headers_option
@_where
def show(output: Output, no_headers: bool, **where: Any) -> int:
    """Show the authorities, and which of them the API servers trust.

    Exit code 0 when the one that signs is trusted, 1 when it is not.
    """
    found = _call(where, _describe)
    if output.is_document:
        output.print(found)
    else:
        style = Style.of(sys.stdout)
        rows: list[tuple[str, ...]] = [("ROLE", "FINGERPRINT", "VALID FROM", "VALID UNTIL", "PUBLISHED", "")]
        for one in found:
            published = "yes" if one["published"] else "no"
            note = f"until {one['retiresAt']}" if one["retiresAt"] else ""
            rows.append((one["role"], one["sha256"][:16], one["notBefore"], one["notAfter"], published, note))
        heading, *lines = table(rows)
        if not no_headers:
            click.echo(style.bold(heading))
        for line in lines:
            click.echo(line)
    return 0 if found[0]["published"] else 1


@command.command()
@_where
def rotate(**where: Any) -> None:
    """Begin a rotation now.

    A new authority is made and put into the Secret. The replicas publish it beside the one in use, sign with it when
    every API server has surely seen it, and drop the old one when nothing it signed can be valid any more.
    """
    click.echo(_call(where, _introduce))


@command.command()
@click.option("-o", "--output", "file", metavar="FILE", default="-", shell_complete=completing.files,
              help="Where to; else standard output.")  # fmt: skip
@_where
def export(file: str, **where: Any) -> None:
    """Write the certificates that the API servers should trust, as PEM. Private keys never leave the Secret."""
    from tessera.webhook.certificates.authorities import bundle_of
    from tessera.webhook.certificates.rotation import Policy

    authorities = _call(where, _authorities)
    bundle = bundle_of(authorities.trusted(time.time(), Policy()))
    if file == "-":
        click.echo(bundle.decode(), nl=False)
    else:
        Path(file).write_bytes(bundle)


def _call(where: dict[str, Any], function: Callable[["KubeStore"], Awaitable[T]]) -> T:
    from tessera.webhook.certificates.store import KubeStore

    async def call(client: "Client") -> T:
        return await function(
            KubeStore(client, where["namespace"], where["ca_secret"], where["webhook_configuration"])
        )

    choice: ClusterChoice = where["cluster"]
    return choice.run(call)


async def _authorities(store: "KubeStore") -> "Authorities":
    return (await _versioned(store))[1]


async def _versioned(store: "KubeStore") -> tuple[str, "Authorities"]:
    from tessera.webhook.certificates.authorities import read_authorities

    secret = await store.read_secret()
    authorities = read_authorities(secret.data, store.secret_name) if secret else None
    if secret is None or authorities is None:
        raise TesseraError(
            f"{store.secret_name} {'is empty' if secret else 'does not exist'}: "
            "a webhook without --tls-cert makes the authority when it starts"
        )
    return secret.version, authorities


async def _describe(store: "KubeStore") -> list[dict[str, Any]]:
    from tessera.webhook.certificates.authorities import names_in
    from tessera.webhook.certificates.rotation import Policy

    authorities, found, policy = await _authorities(store), await store.read_bundles(), Policy()
    bundles = [names_in(pem) for pem in found.bundles.values()] if found else []
    roles = [("current", authorities.current)]
    roles += [("next", authorities.following)] if authorities.following else []
    roles += [("retiring", one) for one in authorities.retiring]
    retires = authorities.retiring_since + policy.leaf_life + 2 * policy.skew
    return [
        {
            "role": role,
            "sha256": one.name,
            "notBefore": _date(one.not_before),
            "notAfter": _date(one.not_after),
            "published": bool(bundles) and all(one.name in names for names in bundles),
            "retiresAt": _date(retires) if role == "retiring" else None,
        }
        for role, one in roles
    ]


async def _introduce(store: "KubeStore") -> str:
    from tessera.webhook.certificates import pki, rotation
    from tessera.webhook.certificates.authorities import write_authorities
    from tessera.webhook.certificates.manager import Conflict
    from tessera.webhook.certificates.signer import Made, Question, Signer

    async def ask(question: Question) -> Made:
        return pki.answer(question)

    policy = rotation.Policy()
    for _ in range(_TRIES):
        version, authorities = await _versioned(store)
        if authorities.following is not None:
            return f"a rotation is under way: {authorities.following.name[:16]} follows {authorities.current.name[:16]}"
        now = time.time()
        fresh = await Signer(ask).authority(now - policy.skew, now + policy.authority_life)
        try:
            await store.write_secret(version, write_authorities(rotation.introduce(authorities, fresh, now)))
        except Conflict:
            continue
        return (
            f"{fresh.name[:16]} follows {authorities.current.name[:16]}: published by the replicas within seconds, "
            f"in use about {policy.settle / 60:.0f} minutes later, alone after {policy.leaf_life / 86400:.0f} days"
        )
    raise TesseraError(f"{store.secret_name} keeps changing: try again")


def _date(seconds: float) -> str:
    if not 0 <= seconds < 253402300800:  # year 10000
        return "-"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
