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
    from tessera.webhook.certificates.files import GivenCertificate
    from tessera.webhook.certificates.rotation import Authorities
    from tessera.webhook.certificates.store import KubeStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_TRIES: Final = 5  # when another client changes the Secret at the same moment
_ENDED: Final = "has expired: API servers refuse it"

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
        "--ca-secret", default="gpu-webhook-ca", show_default=True, help="The Secret with the authority."
    ),
    click.option(
        "--webhook-configuration",
        default="gpu-allocation-webhook",
        show_default=True,
        help="The MutatingWebhookConfiguration whose caBundle has it.",
    ),
)


def _where(function: F) -> F:
    """The options that say which cluster, and which objects in it."""
    for option in reversed(_WHERE):
        function = option(function)
    return function


@click.group()
def command() -> None:
    """Maintain, show, rotate and export the webhook's own certificate authority.

    `run` makes, renews and publishes it; the others show it, or start a change.
    """


@command.command()
@click.option("--metrics-listen", default=":8080", metavar="HOST:PORT", show_default=True,
              help="The address for /metrics and probes over plain HTTP, or `none`.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
              help="`auto`: text on a terminal, JSON elsewhere.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              show_default=True, help="The lowest level that is logged.")  # fmt: skip
@_where
def run(metrics_listen: str, log_format: str, log_level: str, cluster: ClusterChoice, **settings: Any) -> int:
    """Maintain the authority in its Secret, and the caBundle, until stopped.

    For webhooks that only read both (`tessera webhook --read-only-certificates`). Then only this process has the right to
    change the webhook configuration, which is the right to see and change every write in the cluster. Several may
    run; one is enough, because webhooks use the existing authority while none runs.
    """
    import asyncio

    from tessera import __version__
    from tessera.serving.address import Address
    from tessera.serving.ending import Signalled, until_signalled
    from tessera.serving.logs import Log, choose
    from tessera.webhook.certificates.controller import run_controller
    from tessera.webhook.certificates.rotation import Policy
    from tessera.webhook.certificates.store import KubeStore

    listen = None if metrics_listen == "none" else Address.parse(metrics_listen)
    log = Log(choose(log_format), log_level)

    async def work() -> None:
        async with cluster.connected(user_agent=f"tessera-certificates/{__version__}") as client:
            store = KubeStore(
                client, settings["namespace"], settings["ca_secret"], settings["webhook_configuration"]
            )
            await run_controller(store, log, listen, settings.get("certificate_policy", Policy()))

    async def until_told() -> None:
        try:
            await until_signalled(work())
        except Signalled as ended:
            log.info("ended", signal=ended.number.name)

    try:
        asyncio.run(until_told())
    finally:
        log.close()
    return 0


@command.command()
@output_option("table")
@no_headers_option
@click.option("--deployment", default="gpu-webhook", show_default=True,
              help="The webhook's Deployment; it shows whether the certificate comes from files.")  # fmt: skip
@_where
def show(output: Output, no_headers: bool, deployment: str, **where: Any) -> int:
    """Show the authorities, and which of them the API servers trust; or the webhook's certificate from files.

    Exit code 0 when the signing authority (or the certificate) is trusted and valid, 1 when it is not.
    """
    found = _call(where, lambda store: _describe(store, deployment))
    if output.is_document:
        output.print(found)
    else:
        style = Style.of(sys.stdout)
        rows: list[tuple[str, ...]] = [("ROLE", "FINGERPRINT", "VALID FROM", "VALID UNTIL", "PUBLISHED", "")]
        for one in found:
            published = "yes" if one["published"] else "no"
            note = f"until {one['retiresAt']}" if one["retiresAt"] else _ENDED if one["ended"] else ""
            rows.append((one["role"], one["sha256"][:16], one["notBefore"], one["notAfter"], published, note))
        heading, *lines = table(rows)
        if not no_headers:
            click.echo(style.bold(heading))
        for line in lines:
            click.echo(line)
    return 0 if found[0]["published"] and not found[0]["ended"] else 1


@command.command()
@_where
def rotate(**where: Any) -> None:
    """Begin a rotation now.

    The command makes a new authority in the Secret. The replicas publish it beside the one in use, sign with it when
    every API server has seen it, and drop the old one when every certificate that it signed has expired.
    """
    click.echo(_call(where, _introduce))


@command.command()
@click.option("-o", "--output", "file", metavar="FILE", default="-", shell_complete=completing.files,
              help="The file to write.  [default: standard output]")  # fmt: skip
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
            "a webhook without --tls-cert, or `tessera certs run`, makes the authority when it starts"
        )
    return secret.version, authorities


async def _describe(store: "KubeStore", deployment: str) -> list[dict[str, Any]]:
    from tessera.webhook.certificates.authorities import names_in
    from tessera.webhook.certificates.files import read_given
    from tessera.webhook.certificates.rotation import Policy

    given = await read_given(store.client, store.namespace, deployment)
    found, policy = await store.read_bundles(), Policy()
    if given is not None:
        return [_describe_given(given, list(found.bundles.values()) if found else [], deployment)]
    authorities = await _authorities(store)
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
            "ended": one.not_after <= time.time(),
            "published": bool(bundles) and all(one.name in names for names in bundles),
            "retiresAt": _date(retires) if role == "retiring" else None,
        }
        for role, one in roles
    ]


def _describe_given(given: "GivenCertificate", bundles: list[bytes], deployment: str) -> dict[str, Any]:
    """The certificate in the Secret that the webhook's `--tls-cert` is mounted from."""
    from cryptography.hazmat.primitives.hashes import SHA256

    where = f"Deployment {deployment} has its certificate from {given.file}"
    if not given.secret:
        raise TesseraError(
            f"{where}, where no Secret is mounted: gpu_webhook_certificate_expiry_timestamp_seconds says when it expires"
        )
    if not (chain := given.certificates()):
        raise TesseraError(f"{where}, and {given.secret} holds no certificate for it")
    leaf = chain[0]
    ends = leaf.not_valid_after_utc.timestamp()
    return {
        "role": "given",
        "sha256": leaf.fingerprint(SHA256()).hex(),
        "notBefore": _date(leaf.not_valid_before_utc.timestamp()),
        "notAfter": _date(ends),
        "ended": ends <= time.time(),
        "published": bool(bundles) and all(given.trusted_by(pem) for pem in bundles),
        "retiresAt": None,
    }


async def _introduce(store: "KubeStore") -> str:
    from tessera.webhook.certificates import pki, rotation
    from tessera.webhook.certificates.authorities import write_authorities
    from tessera.webhook.certificates.signer import Signer
    from tessera.webhook.certificates.store import Conflict, check_clock

    policy = rotation.Policy()
    for _ in range(_TRIES):
        version, authorities = await _versioned(store)
        if authorities.following is not None:
            return f"a rotation is in progress: {authorities.following.name[:16]} follows {authorities.current.name[:16]}"
        now = time.time()
        if (date := store.server_date()) is not None:
            check_clock(date - now, policy)
        fresh = await Signer(pki.ask).authority(now - policy.skew, now + policy.authority_life)
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
