"""`tessera demo`: what Tessera does, story by story."""

import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import click

from tessera.cli.terminal import Style


@dataclass(frozen=True, slots=True)
class Story:
    """A cluster, a pod, and how it must end."""

    name: str
    title: str
    told: str
    nodes: dict[str, dict[str, int]]  # node → what it offers
    resources: list[dict[str, Any]]  # of each container
    ends: str  # the record of the fallback, "as asked", "rejected", or the CPUs that were injected
    gpu_type: str = ""


H200_SMALL = {"h200-small": {"nvidia.com/mig-1g.10gb": 28}}
H200_MEDIUM = {"h200-medium": {"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.30gb": 4}}
A100 = {"a100": {"nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-2g.20gb": 4}}
V100 = {"v100": {"nvidia.com/gpu": 8}, "cpu": {}}
THREE_CENTRES = "One YAML for three data centres: the pod asks for 3g.30gb."


def _asks(profile: str) -> list[dict[str, Any]]:
    return [{"limits": {f"nvidia.com/mig-{profile}": 1}}]


STORIES = (
    Story("smaller", "A smaller slice", "The cluster's four cards are cut into 28 × 1g.10gb; 2g.20gb is nowhere.", H200_SMALL, _asks("2g.20gb"), "2g.20gb->1g.10gb"),
    Story("larger", "A larger slice", "Nothing as small as 1g.10gb is left, and nothing smaller: the pod is upgraded.", H200_MEDIUM, _asks("1g.10gb"), "1g.10gb->2g.20gb"),
    Story("h200", "The H200 data centre", THREE_CENTRES + " Here it is offered.", H200_MEDIUM, _asks("3g.30gb"), "as asked"),
    Story("a100", "The A100 data centre", THREE_CENTRES + " Here the next smaller one is.", A100, _asks("3g.30gb"), "3g.30gb->2g.20gb"),
    Story("v100", "The V100 data centre", THREE_CENTRES + " Here there is no MIG at all: it gets a whole GPU.", V100, _asks("3g.30gb"), "3g.30gb->gpu"),
    Story("rejected", "Nothing fits", "No node has a GPU. Today such a pod hangs in Pending; here its owner is told at once.", {"cpu": {}}, _asks("2g.20gb"), "rejected"),
    Story("injection", "CPU and memory for its GPUs", "2 GPUs at 4 CPUs and 8Gi each, less what the side container takes.", V100, [{"requests": {"nvidia.com/gpu": 2}}, {"requests": {"cpu": "1000m", "memory": "2Gi"}}], "7", "V100"),
)  # fmt: skip


@click.command()
@click.option("--story", "names", multiple=True, metavar="NAME", help="Tell only this story. Repeatable.")
@click.option("--list", "list_only", is_flag=True, help="List the stories.")
def command(names: tuple[str, ...], list_only: bool) -> int:
    """See what Tessera does, story by story.

    Each story admits a pod with the code of the webhook. Exit code 0 only if every story ended as told.
    """
    known = {story.name: story for story in STORIES}
    if list_only:
        for story in STORIES:
            click.echo(f"{story.name:<10} {story.title}")
        return 0
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no story is called {unknown[0]}; they are {', '.join(known)}")
    style = Style.of(sys.stdout)
    chosen = [known[name] for name in names] or list(STORIES)
    ended = [_tell(story, style) for story in chosen]
    good = sum(ended)
    click.echo(style.bold(f"{good} of {len(ended)} stories ended as told."))
    return 0 if good == len(ended) else 1


def _tell(story: Story, style: Style) -> bool:
    from tessera.cli.admit import admit
    from tessera.cli.explanation import explain
    from tessera.core.admission import Reject
    from tessera.core.node import Node
    from tessera.core.offers import Offers
    from tessera.core.quantity import Quantity
    from tessera.protocol import config

    policy = config.parse(config.EXAMPLE).policy
    offers = Offers(
        Node(name, {}, (), {resource: Quantity.parse(count) for resource, count in has.items()})
        for name, has in story.nodes.items()
    )
    annotations = (
        {"annotations": {"task.bkbcs.tencent.com/gpu-type": story.gpu_type}} if story.gpu_type else {}
    )
    containers = [
        {"name": "main" if index == 0 else "side", "image": "busybox", "resources": resources}
        for index, resources in enumerate(story.resources)
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": story.name, **annotations},
        "spec": {"containers": containers},
    }
    result = admit(pod, offers, policy, "default")
    assert result.judgement is not None  # noqa: S101 # a pod has one
    after = result.after
    limits = after["spec"]["containers"][0]["resources"].get("limits", {})
    record = after["metadata"].get("annotations", {}).get("gpu-webhook.k8s.io/fallback", "as asked")
    ended = (
        "rejected"
        if isinstance(result.judgement.decision, Reject)
        else limits["cpu"]
        if story.gpu_type
        else record
    )
    click.echo(style.bold(f"── {story.title} " + "─" * (70 - len(story.title))))
    click.echo(textwrap.fill(story.told, 100))
    click.echo()
    click.echo(explain(result, offers, policy, style), color=style.enabled)
    right = ended == story.ends
    click.echo(
        style.good("  ✓ as told")
        if right
        else style.bad(f"  ✗ told to end in {story.ends}, ended in {ended}")
    )
    click.echo()
    return right
