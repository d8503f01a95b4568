"""`python -m e2e.cluster`: build the programs, start a cluster and leave it running, stop it again."""

import shlex
import signal
import sys
import time
from pathlib import Path

import click

from e2e.cluster import versions
from e2e.cluster.cluster import Cluster, ClusterWithNode
from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.folder import Folder
from e2e.cluster.node import CONTAINERD_NAMESPACE, Node
from e2e.cluster.programs import built, install_debian_packages, program, programs

_NAME = click.option(
    "--name", default="dev", show_default=True, help="Several clusters may run side by side."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Real Kubernetes on this machine, for tests and for trying things out."""


@main.command()
@click.option("--control-plane", is_flag=True, help="Only what a cluster without a node needs.")
@click.option(
    "--with",
    "extra",
    default="",
    metavar="NAME,…",
    help=f"Also build: {', '.join((*versions.OPTIONAL, *versions.NVIDIA))}, or all.",
)
def build(*, control_plane: bool, extra: str) -> None:
    """Fetch and build every program into the cache; those that are there are left alone."""
    wanted = [
        *versions.CONTROL_PLANE,
        *(() if control_plane else versions.NODE),
        *((*versions.OPTIONAL, *versions.NVIDIA) if extra == "all" else filter(None, extra.split(","))),
    ]
    for path in programs(wanted).values():
        click.echo(path)
    if not control_plane:
        install_debian_packages()


@main.command()
@_NAME
@click.option("--control-plane", is_flag=True, help="No node: starts in a few seconds, needs no root.")
def up(*, name: str, control_plane: bool) -> None:
    """Start a cluster and leave it running."""
    kind = Cluster if control_plane else ClusterWithNode
    kind.prepare()
    started = time.monotonic()
    cluster = kind.start(name, owned=False)
    click.echo(f"Cluster {name!r} is up after {time.monotonic() - started:.1f} s.", err=True)
    click.echo(f"export KUBECONFIG={cluster.kubeconfig}", err=True)


@main.command()
@click.argument("names", nargs=-1)
def down(names: tuple[str, ...]) -> None:
    """Stop clusters, and remove what crashed ones left behind.

    Without names: the cluster `dev`, and every one whose tests have ended without stopping it.
    """
    found = list(Folder.all())
    known = {folder.name for folder in found}
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"there is no cluster {name!r}; there is {', '.join(sorted(known)) or 'none'}"
            )
    for folder in found:
        if folder.name in names or (not names and (folder.name == "dev" or folder.abandoned)):
            folder.remove()
            click.echo(f"Cluster {folder.name!r} is gone.", err=True)


@main.command()
def status() -> None:
    """Show every cluster and its processes."""
    for folder in Folder.all():
        owner = folder.owner
        state = (
            "stays up" if owner is None else f"ends with process {owner.pid}" if owner.alive else "abandoned"
        )
        click.echo(f"{folder.name}  ({state})  {folder.kubeconfig}")
        for process in folder.processes():
            click.echo(f"  {process.pid:>7}  {process.name}")


@main.command()
@_NAME
def env(*, name: str) -> None:
    """Print what a shell needs to use a cluster: `eval "$(python -m e2e.cluster env)"`.

    That is KUBECONFIG, and kubectl in the PATH; helm too, where it is built; and for a cluster with a node ctr, with the
    variables by which it finds the node's containerd.
    """
    folder = _running(name)
    found = [program("kubectl"), built("helm")]
    variables = {"KUBECONFIG": str(folder.kubeconfig)}
    if (node := Node.of(folder.path)) is not None:
        found.append(built("ctr"))
        variables |= {"CONTAINERD_ADDRESS": str(node.socket), "CONTAINERD_NAMESPACE": CONTAINERD_NAMESPACE}
    for variable, value in variables.items():
        click.echo(f"export {variable}={shlex.quote(value)}")
    places = dict.fromkeys(str(path.parent) for path in found if path is not None)
    click.echo(f'export PATH={shlex.quote(":".join(places))}:"$PATH"')
    if built("helm") is None:
        click.echo("helm is not built yet: `python -m e2e.cluster build --with helm`", err=True)


@main.command()
@_NAME
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...", type=click.Path(path_type=Path))
def load(*, name: str, images: tuple[Path, ...]) -> None:
    """Make images known on a cluster's node, from archives as `make image` or `docker save` write them.

    Pods use them by the name that is printed, with `imagePullPolicy: Never` or `IfNotPresent`.
    """
    node = Node.of(_running(name).path)
    if node is None:
        raise click.UsageError(f"the cluster {name!r} has no node that could have images")
    for image in images:
        if not image.is_file():
            raise click.UsageError(
                f"{image}: no such file; an archive is meant, such as `make image` or `docker save` write"
            )
        click.echo(node.load_image(program("ctr"), image), nl=False)


def _running(name: str) -> Folder:
    folder = Folder(name)
    if not folder.kubeconfig.exists():
        raise click.UsageError(
            f"there is no cluster {name!r}; `python -m e2e.cluster up --name {name}` starts one"
        )
    return folder


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # so that what was started is stopped
        signal.signal(number, signal.default_int_handler)
    try:
        main()
    except (ClusterError, Unavailable) as error:
        sys.exit("\n".join([f"Error: {error}", *getattr(error, "__notes__", [])]))
