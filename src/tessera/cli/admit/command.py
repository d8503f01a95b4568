"""`tessera admit`: the webhook's decision, offline."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from tessera.cli.common import completing
from tessera.cli.common.saved import named
from tessera.cli.common.terminal import Style, called, read_documents, read_parsed
from tessera.core.admission.decision import Admit, Policy, Reject
from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.protocol import yaml
from tessera.protocol.admission import patch, review
from tessera.protocol.configuration import webhook as config
from tessera.protocol.kubernetes import objects
from tessera.webhook.endpoint import Judgement, judge

EXIT_REJECTED: Final = 3

# Where a pod stands in the objects that make pods.
TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"),
        ("spec", "template"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


@dataclass(frozen=True, slots=True)
class Admitted:
    """One object of the input, and what became of it; `judgement` is None for objects without pods."""

    before: dict[str, Any]
    after: dict[str, Any]
    judgement: Judgement | None

    @property
    def title(self) -> str:
        """The object as messages name it: `Pod default/train`."""
        namespace = f"{self.judgement.pod.namespace}/" if self.judgement else ""
        return f"{self.before.get('kind')} {namespace}{_name(self.before)}"


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="Pods or workloads, YAML or JSON; - is standard input. Repeatable.",
)
@click.option(
    "--nodes",
    "node_files",
    multiple=True,
    required=True,
    metavar="FILE",
    shell_complete=completing.files,
    help="The cluster's nodes, as `kubectl get nodes -o yaml` prints them; Namespaces count too. Repeatable.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    shell_complete=completing.files,
    help="Tessera's configuration file (see `tessera config example`).",
)
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="The namespace of objects that name none."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "patch", "explain"]),
    default="yaml",
    show_default=True,
    help="The admitted objects, their JSON patches (a line each), or the whole reasoning.",
)
def command(
    files: tuple[str, ...], node_files: tuple[str, ...], config_file: str | None, namespace: str, output: str
) -> int:
    """Decide about pods offline, with the very code of the webhook.

    Pods, and the pod templates of Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs and CronJobs, are admitted
    against the given nodes; any other object passes as it is. Warnings and rejections go to standard error, except with
    -o explain, where they are part of the reasoning.

    \b
    Exit codes: 0 admitted, 2 bad input, 3 rejected.

    \b
    kubectl get nodes -o yaml > nodes.yaml
    tessera admit -f pod.yaml --nodes nodes.yaml -o explain
    """  # fmt: skip
    if list(files).count("-") + list(node_files).count("-") > 1:
        raise InvalidInput("standard input (-) can be read only once")
    policy = read_policy(config_file)
    offers = read_offers(node_files)
    results = _admit_all([(file, _objects(file, "objects")) for file in files], offers, policy, namespace)
    if output == "explain":
        from tessera.cli.admit.explanation import explain

        style = Style.of(sys.stdout)
        click.echo("\n\n".join(explain(one, offers, policy, style) for one in results), color=style.enabled)
    else:
        _print([one for one in results if not _rejected(one)], output)
        _report(results)
    return EXIT_REJECTED if any(map(_rejected, results)) else 0


def read_policy(file: str | None) -> Policy:
    """The configuration's policy; without a file, everything has its default."""
    return Policy() if file is None else read_parsed(file, config.parse).policy


def read_offers(files: tuple[str, ...]) -> Offers:
    """The cluster's nodes and namespaces, from files; of nodes there must be some."""
    offers = Offers()
    for file in files:
        for one in _objects(file, "nodes"):
            with _naming(file):
                match one.get("kind"):
                    case "Node":
                        offers.put(objects.node_of(_decoded(objects.decode_node, one)))
                    case "Namespace":
                        _put_namespace(offers, one)
                    case kind:
                        raise InvalidInput(f"kind {kind or '(none)'} is neither a Node nor a Namespace")
    if not offers.nodes:
        raise InvalidInput(f"{named(files)}: no nodes")
    return offers


def _admit_all(
    given: list[tuple[str, list[dict[str, Any]]]], offers: Offers, policy: Policy, namespace: str
) -> list[Admitted]:
    """Admit the objects of some files; the Namespaces among them count wherever they stand."""
    for file, found in given:
        for one in found:
            if one.get("kind") == "Namespace":
                with _naming(file):
                    _put_namespace(offers, one)
    results = []
    for file, found in given:
        with _naming(file):
            results += [admit(one, offers, policy, namespace) for one in found]
    return results


def admit(one: dict[str, Any], offers: Offers, policy: Policy, namespace: str) -> Admitted:
    """Admit one object as the webhook would."""
    kind = one.get("kind")
    if not isinstance(kind, str):
        raise InvalidInput(
            f"kind: {'missing' if kind is None else 'not a text'}; expected a Kubernetes object"
        )
    if kind not in TEMPLATES:
        return Admitted(one, one, None)
    template: Any = one
    for step in TEMPLATES[kind]:
        template = template.get(step) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise InvalidInput(
            f"{kind} {_name(one)}: {'.'.join(TEMPLATES[kind])}: missing; expected a pod template"
        )
    metadata = one.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"{kind}: metadata: expected an object")
    body = msgspec.json.encode(
        {
            "apiVersion": review.API_VERSION,
            "kind": review.KIND,
            "request": {
                "uid": "offline",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "namespace": metadata.get("namespace") or namespace,
                "operation": "CREATE",
                "object": template,
            },
        }
    )
    root = "".join(f"/{step}" for step in TEMPLATES[kind])
    try:
        judgement = judge(review.decode(body), offers, policy, lambda: one, root)
    except InvalidInput as error:
        raise InvalidInput(f"{kind} {_name(one)}: {str(error).removeprefix('request.object.')}") from error
    return Admitted(one, patch.apply(one, judgement.operations), judgement)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Complaints about what is in a file name it."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{called(file)}: {error}") from error


def _objects(file: str, expected: str) -> list[dict[str, Any]]:
    """The objects in a file; none at all is what a kubectl that failed leaves behind."""
    documents = read_documents(file)
    with _naming(file):
        found = objects.items(documents)
        if not found:
            raise InvalidInput(f"no {expected}")
    return found


def _put_namespace(offers: Offers, one: dict[str, Any]) -> None:
    offers.put_namespace(objects.namespace_of(_decoded(objects.decode_namespace, one)))


def _decoded(decode: Any, one: dict[str, Any]) -> Any:
    try:
        return decode(msgspec.json.encode(one))
    except objects.InvalidObject as error:
        raise InvalidInput(f"{one.get('kind')} {_name(one)}: {error}") from error


def _name(one: dict[str, Any]) -> str:
    metadata = one.get("metadata")
    if not isinstance(metadata, dict):
        return "(no name)"
    return str(metadata.get("name") or metadata.get("generateName") or "(no name)")


def _rejected(one: Admitted) -> bool:
    return one.judgement is not None and isinstance(one.judgement.decision, Reject)


def _print(results: list[Admitted], output: str) -> None:
    after = [one.after for one in results]
    if not after:
        return
    match output:
        case "yaml":
            click.echo("---\n".join(map(yaml.dump, after)), nl=False)
        case "json" if len(after) > 1:
            click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": after}, indent=2))
        case "json":
            click.echo(json.dumps(after[0], indent=2))
        case _:
            for one in results:
                if one.judgement is not None:
                    click.echo(json.dumps(one.judgement.operations))


def _report(results: list[Admitted]) -> None:
    """Warnings and rejections, as kubectl would print them."""
    for one in results:
        if one.judgement is None:
            continue
        decision = one.judgement.decision
        if isinstance(decision, Reject):
            click.echo(f"{one.title}: rejected: {decision.message}", err=True)
            continue
        for warning in decision.warnings:
            click.echo(f"Warning: {warning}", err=True)


__all__ = ["Admit", "Admitted", "admit", "command"]
