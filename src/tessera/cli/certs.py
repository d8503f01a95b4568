"""`tessera certs`: the webhook's own certificate authority."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from tessera import __version__
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import (
    ClusterChoice,
    Listen,
    cluster_options,
    log_options,
    option,
    tessera_namespace_option,
    together,
    webhook_configuration_option,
    webhook_name_option,
)
from tessera.cli.common.output import Output, echo, headed, no_headers_option, output_option, print_document
from tessera.core.errors import TesseraError
from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.pem import certificates_in, leads_to
from tessera.serving.address import Address
from tessera.serving.ending import Signalled, until_signalled
from tessera.serving.logs import Log, choose
from tessera.webhook.certificates import rotation
from tessera.webhook.certificates.authorities import bundle_of, names_in, read_authorities, write_authorities
from tessera.webhook.certificates.controller import run_controller
from tessera.webhook.certificates.files import GivenCertificate, read_given
from tessera.webhook.certificates.rotation import Authorities, RotationPolicy
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.certificates.store import Conflict, KubeStore, check_clock

T = TypeVar("T")

_TRIES: Final = 5  # when another client changes the Secret at the same moment
_ENDED: Final = "has expired: API servers refuse it"
_HEADING: Final = ("ROLE", "FINGERPRINT", "VALID FROM", "VALID UNTIL", "PUBLISHED", "")

_where_options: Final = together(
    cluster_options,
    tessera_namespace_option(default="gpu-webhook"),
    option(
        "--ca-secret NAME",
        "The Secret with the certificate authority.",
        default="gpu-webhook-ca",
        group="Tessera",
    ),
    webhook_configuration_option(),
)


@click.group()
def command() -> None:
    """Maintain, show, rotate and export the webhook's own certificate authority.

    `run` makes, renews and publishes it; the others show it, or start a change.
    """


@command.command(cls=Command, short_help="Maintain the authority and the caBundle, until stopped.")
@option(
    "--metrics-listen [HOST]:PORT",
    "The address for /metrics and probes over plain HTTP, or `none`.",
    type=Listen(),
    default=":8080",
)
@log_options(option)
@_where_options
def run(
    metrics_listen: Address | None, log_format: str, log_level: str, cluster: ClusterChoice, **settings: Any
) -> None:
    """Maintain the authority in its Secret, and the caBundle, until stopped.

    For webhooks that only read both (`tessera webhook --read-only-certificates`). Then only this process has the right to
    change the webhook configuration, which is the right to see and change every write in the cluster. Several may
    run; one is enough, because webhooks use the existing authority while none runs.
    """
    log = Log(choose(log_format), log_level)

    async def work() -> None:
        async with cluster.connected(user_agent=f"tessera-certificates/{__version__}") as client:
            policy = settings.get("certificate_policy", RotationPolicy())
            await run_controller(_store(client, settings), log, metrics_listen, policy)

    async def until_signal() -> None:
        try:
            await until_signalled(work())
        except Signalled as ended:
            log.info("ended", signal=ended.number.name)

    try:
        asyncio.run(until_signal())
    finally:
        log.close()


@command.command(cls=Command, short_help="Show the authorities, and which of them the API servers trust.")
@output_option("table")
@no_headers_option
@webhook_name_option(
    "The webhook's Deployment; it shows whether the certificate comes from files.", "deployment"
)
@_where_options
def show(output: Output, no_headers: bool, deployment: str, **where: Any) -> ExitCode:
    """Show the authorities, and which of them the API servers trust; or the webhook's certificate from files.

    Exit code 3: the signing authority (or the certificate) is not trusted, or has expired.
    """
    found = _call(where, lambda store: _describe(store, deployment))
    rows = [_HEADING, *map(_row, found)]
    output.show(lambda: found, lambda style: headed(rows, style, headers=not no_headers))
    return ExitCode.DONE if found[0]["published"] and not found[0]["ended"] else ExitCode.NO


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    published = "yes" if one["published"] else "no"
    note = f"until {one['retiresAt']}" if one["retiresAt"] else _ENDED if one["ended"] else ""
    return one["role"], one["sha256"][:16], one["notBefore"], one["notAfter"], published, note


@command.command(cls=Command)
@_where_options
def rotate(**where: Any) -> None:
    """Begin a rotation now.

    The command makes a new authority in the Secret. The replicas publish it next to the one in use, sign with it when
    every API server has seen it, and drop the old one when every certificate that it signed has expired.
    """
    echo([_call(where, _introduce)])


@command.command(cls=Command)
@_where_options
def export(**where: Any) -> None:
    """Print the certificates that the API servers should trust, as PEM. Private keys never leave the Secret."""
    _, authorities = _call(where, _authorities)
    bundle = bundle_of(authorities.trusted(time.time(), RotationPolicy()))
    print_document(bundle.decode(), ends_line=False)


def _call(where: dict[str, Any], function: Callable[[KubeStore], Awaitable[T]]) -> T:
    choice: ClusterChoice = where["cluster"]
    return choice.run(lambda client: function(_store(client, where)))


def _store(client: Client, where: dict[str, Any]) -> KubeStore:
    return KubeStore(client, where["tessera_namespace"], where["ca_secret"], where["webhook_configuration"])


async def _authorities(store: KubeStore) -> tuple[str, Authorities]:
    """The authorities, and the version of the Secret that has them."""
    secret = await store.read_secret()
    authorities = read_authorities(secret.data, store.secret_name) if secret else None
    if secret is None or authorities is None:
        raise TesseraError(
            f"{store.secret_name} {'is empty' if secret else 'does not exist'}: "
            "a webhook without --tls-cert, or `tessera certs run`, makes the authority when it starts"
        )
    return secret.version, authorities


async def _describe(store: KubeStore, deployment: str) -> list[dict[str, Any]]:
    given = await read_given(store.client, store.namespace, deployment)
    found, policy = await store.read_bundles(), RotationPolicy()
    if given is not None:
        return [_describe_given(given, list(found.bundles.values()) if found else [], deployment)]
    _, authorities = await _authorities(store)
    bundles = [names_in(pem) for pem in found.bundles.values()] if found else []
    roles = [("current", authorities.current)]
    roles += [("next", authorities.following)] if authorities.following else []
    roles += [("retiring", one) for one in authorities.retiring]
    retires = _date(authorities.retiring_since + policy.leaf_life + 2 * policy.skew)
    return [
        _described(
            role,
            one.name,
            one.not_before,
            one.not_after,
            published=bool(bundles) and all(one.name in names for names in bundles),
            retires=retires if role == "retiring" else None,
        )
        for role, one in roles
    ]


def _described(
    role: str, name: str, begins: float, ends: float, *, published: bool, retires: str | None = None
) -> dict[str, Any]:
    return {
        "role": role,
        "sha256": name,
        "notBefore": _date(begins),
        "notAfter": _date(ends),
        "ended": ends <= time.time(),
        "published": published,
        "retiresAt": retires,
    }


def _describe_given(given: GivenCertificate, bundles: list[bytes], deployment: str) -> dict[str, Any]:
    """The certificate in the Secret that the webhook's `--tls-cert` is mounted from."""
    from cryptography.hazmat.primitives.hashes import SHA256

    where = f"Deployment {deployment} has its certificate from {given.file}"
    if not given.secret:
        raise TesseraError(
            f"{where}, where no Secret is mounted: gpu_webhook_certificate_expiry_timestamp_seconds says when it expires"
        )
    if not (chain := certificates_in(given.chain)):
        raise TesseraError(f"{where}, and {given.secret} holds no certificate for it")
    leaf = chain[0]
    return _described(
        "given",
        leaf.fingerprint(SHA256()).hex(),
        leaf.not_valid_before_utc.timestamp(),
        leaf.not_valid_after_utc.timestamp(),
        published=bool(bundles) and all(leads_to(chain, certificates_in(pem)) for pem in bundles),
    )


async def _introduce(store: KubeStore) -> str:
    from tessera.webhook.certificates import (
        pki,
    )  # not at the top: `run` does without cryptography's megabytes

    policy = RotationPolicy()
    for _ in range(_TRIES):
        version, authorities = await _authorities(store)
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
    return moment(seconds)
