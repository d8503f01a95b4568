"""`tessera admit`: the webhook's decision, offline."""

import json
import sys
from typing import Any, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.output import Output, output_option
from tessera.cli.common.terminal import Style, read_parsed
from tessera.core.admission.decision import Policy, Reject
from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.kube.object_files import (
    NodesAndNamespaces,
    called,
    documents_in,
    naming,
    nodes_and_namespaces,
    objects_in_documents,
    objects_in_text,
    read_file,
)
from tessera.protocol import yaml
from tessera.protocol.configuration import webhook as config
from tessera.webhook.offline import Admitted, admit

EXIT_REJECTED: Final = 3


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
@output_option(
    "patch",
    "explain",
    default="yaml",
    help="The admitted objects, their JSON patches (a line each), or the whole reasoning.",
)
def command(
    files: tuple[str, ...],
    node_files: tuple[str, ...],
    config_file: str | None,
    namespace: str,
    output: Output,
) -> int:
    """Decide about pods offline, with the very code of the webhook.

    Pods, and the pod templates of Deployments, Jobs and any other object that has some (Volcano, Kubeflow, JobSet, Ray …),
    are admitted against the given nodes; what has none passes as it is. Warnings and rejections go to standard error, except with
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
    results = _admit_all([(file, _objects(file)) for file in files], offers, policy, namespace)
    if output.form == "explain":
        from tessera.cli.admit.explanation import explain

        style = Style.of(sys.stdout)
        click.echo("\n\n".join(explain(one, offers, policy, style) for one in results), color=style.enabled)
    else:
        _print([one for one in results if not one.rejected], output)
        _report(results)
    return EXIT_REJECTED if any(one.rejected for one in results) else 0


def read_policy(file: str | None) -> Policy:
    """The configuration's policy; without a file, everything has its default."""
    return Policy() if file is None else read_parsed(file, config.parse).policy


def read_offers(files: tuple[str, ...]) -> Offers:
    """The cluster's nodes and namespaces, from files; of nodes there must be some."""
    offers = Offers()
    for file in files:
        found = nodes_and_namespaces(objects_in_text(read_file(file), called(file)))
        if not found.nodes and not found.namespaces:  # what a kubectl that failed leaves behind
            raise InvalidInput(f"{called(file)}: no nodes")
        _put(offers, found)
    if not offers.nodes:
        raise InvalidInput(f"{called(*files)}: no nodes")
    return offers


def _put(offers: Offers, found: NodesAndNamespaces) -> None:
    for node in found.nodes:
        offers.put(node)
    for namespace in found.namespaces:
        offers.put_namespace(namespace)


def _admit_all(
    given: list[tuple[str, list[dict[str, Any]]]], offers: Offers, policy: Policy, namespace: str
) -> list[Admitted]:
    """Admit the objects of some files; the Namespaces among them count wherever they stand."""
    for file, found in given:
        spaces = [one for one in found if one.get("kind") == "Namespace"]
        _put(offers, nodes_and_namespaces(objects_in_documents(spaces, called(file))))
    results = []
    for file, found in given:
        with naming(called(file)):
            results += [admit(one, offers, policy, namespace) for one in found]
    return results


def _objects(file: str) -> list[dict[str, Any]]:
    """The objects in a file; none at all is what a kubectl that failed leaves behind."""
    if found := documents_in(file):
        return found
    raise InvalidInput(f"{called(file)}: no objects")


def _print(results: list[Admitted], output: Output) -> None:
    after = [one.after for one in results]
    if not after:
        return
    match output.form:
        case "yaml":
            click.echo("---\n".join(map(yaml.dump, after)), nl=False)
        case "json" | "jsonpath":
            several = {"apiVersion": "v1", "kind": "List", "items": after}
            output.print(several if len(after) > 1 else after[0])
        case _:
            for one in results:
                if one.judgements:
                    click.echo(json.dumps(one.operations))


def _report(results: list[Admitted]) -> None:
    """Warnings and rejections, as kubectl would print them."""
    for one in results:
        for place, judgement in one.judgements.items():
            decision = judgement.decision
            if isinstance(decision, Reject):
                click.echo(f"{one.title_at(place)}: rejected: {decision.message}", err=True)
                continue
            for warning in decision.warnings:
                click.echo(f"Warning: {warning}", err=True)
