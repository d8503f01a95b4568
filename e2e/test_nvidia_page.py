"""The page about NVIDIA's operator, followed to the letter: its commands, on NVIDIA's programs, print what the page says."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from e2e.cluster import ClusterWithNode, program
from e2e.nvidia import Driver
from e2e.nvidia.node import NvidiaNode, prepare
from e2e.test_device_plugin import pod

PAGE = Path(__file__).parents[1] / "docs/nvidia-operator.md"
USER = "--as=ann --as-group=gpu-admins"  # who has the rights that the page names, and no others
_BY_ROLE = re.compile(r"^tessera (mig|capacity)\b")
_PROGRESS = re.compile(
    r"\S+: (state |waiting for the node|mig-manager reports|nvidia.com/mig.config written)"
)
_NONE_LEFT = re.compile(
    r"\S+ \S+ nvidia\.com/\S+ 0 0 0 - "
)  # the kubelet remembers devices of other tests, and counts none
_AGE = re.compile(r"\d+[smh]\S*$")


@pytest.fixture
def node(
    cluster_with_node: ClusterWithNode, tmp_path: Path, pytestconfig: pytest.Config
) -> Iterator[NvidiaNode]:
    """Two H200, the operator's own ConfigMap, and the configuration with which the page begins."""
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        prepare()
    cluster_with_node.forget_devices()
    driver = Driver(tmp_path / "driver", "H200", cards=2)
    config_map = "default-mig-parted-config"
    with NvidiaNode(cluster_with_node, driver, tmp_path, config_map=config_map, sync_delay=5) as one:
        one.wait_for_devices({"nvidia.com/gpu": 2})
        one.label(mig_config="all-1g.18gb")
        one.wait_for_state("success")
        one.wait_for_devices({"nvidia.com/mig-1g.18gb": 14})
        before = '{"status": {"capacity": {"nvidia.com/mig-2g.20gb": "0"}, "allocatable": {"nvidia.com/mig-2g.20gb": "0"}}}'
        cluster_with_node.kubectl(
            "patch", "node", cluster_with_node.node_name, "--subresource=status", "-p", before
        )
        yield one


def test_followed_to_the_letter(node: NvidiaNode, node_namespace: str, tmp_path: Path) -> None:
    """Every command prints what stands on the page, with the rights that stand there; pods come and go as its sentences say."""
    text = PAGE.read_text().replace("node-h200", node.cluster.node_name)
    text = re.sub(r"\bgpu-operator\b(?!\.md)", node.namespace, text)
    text = re.sub(r"-n team\b|\bteam/", lambda found: found[0].replace("team", node_namespace), text)
    shell = _shell(node, tmp_path)
    _grant(node, text)
    pods = _pods(node, node_namespace)
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = section.partition("\n")
        pods(heading)
        for block in re.findall(r"```text\n(.*?)```", rest, re.DOTALL):
            for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
                pods(command)
                _compare(command, _lines(printed), _lines(shell(command)))


def _pods(node: NvidiaNode, namespace: str) -> Callable[[str], None]:
    """What the page's sentences say of pods, before a section or a command."""
    cluster = node.cluster

    def wait(name: str, profile: str) -> None:
        cluster.apply(pod(name, f"nvidia.com/mig-{profile}", 1), namespace=namespace)
        cluster.wait_for_pod_unschedulable(name, namespace=namespace)

    def end(*names: str) -> None:
        for name in names:
            cluster.wait_for_pod_phase(name, "Running", namespace=namespace)
        cluster.kubectl("delete", "pod", *names, "-n", namespace)

    def seven() -> None:
        cluster.wait_for_pod_phase("big", "Running", namespace=namespace)
        wait("seven", "7g.141gb")

    steps: dict[str, Callable[[], object]] = {
        "Why a pod waits": lambda: wait("train", "3g.71gb"),
        f"kubectl get pods -n {namespace}": lambda: cluster.wait_for_pod_phase(
            "train", "Running", namespace=namespace
        ),
        "A node with pods": lambda: wait("big", "4g.71gb"),
        "A new configuration": lambda: end("train"),
        "tessera mig plan -o json > plan.json": seven,
        "Going back": lambda: end("big", "seven"),
    }

    def before(what: str) -> None:
        steps.pop(what, lambda: None)()

    return before


def _shell(node: NvidiaNode, folder: Path) -> Callable[[str], str]:
    """A shell as an administrator has it; the wait for mig-manager's file is shorter, as the file is sooner there."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 10\n")
    (programs / "sleep").chmod(0o755)
    path = [programs, Path(sys.executable).parent, program("kubectl").parent, os.environ["PATH"]]
    environment = {
        **os.environ,
        "KUBECONFIG": str(node.cluster.kubeconfig),
        "PATH": ":".join(map(str, path)),
    }

    def run(command: str) -> str:
        head, arrow, file = command.partition(" > ")
        if _BY_ROLE.match(head):
            head += f" {USER}"
        if re.search(r"mig apply| --apply", head) and "--yes" not in head:
            head += " --yes"
        kept, others = (None, subprocess.DEVNULL) if arrow else (subprocess.PIPE, subprocess.STDOUT)
        return (
            subprocess.run(
                ["sh", "-c", head + arrow + file],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=kept,
                stderr=others,
                text=True,
                timeout=200,
                check=False,
            ).stdout
            or ""
        )

    return run


def _grant(node: NvidiaNode, text: str) -> None:
    """The page's role, for a group."""
    roles = "".join(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    assert roles.count("tessera-layouts") == 2
    cluster, group = node.cluster, "--group=gpu-admins"
    cluster.apply(roles)
    cluster.kubectl("create", "clusterrolebinding", "tessera-layouts", "--clusterrole=tessera-layouts", group)
    cluster.kubectl(
        "create", "rolebinding", "tessera-layouts", "--role=tessera-layouts", group, "-n", node.namespace
    )


def _lines(printed: str) -> list[str]:
    """Without what differs from time to time: how far a change is, ages, the width of columns, the question, what is no more."""
    lines = (_AGE.sub("AGE", re.sub(" +", " ", line).rstrip()) for line in printed.splitlines())
    return [
        line
        for line in lines
        if not _PROGRESS.match(line) and not line.startswith("Change 1 node?") and not _NONE_LEFT.match(line)
    ]


def _compare(command: str, page: Sequence[str], real: Sequence[str]) -> None:
    """`…` stands for lines, none or more, or for the end of one."""
    parts = ["(.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + "\n" for line in page]
    same = re.fullmatch("".join(parts), "".join(f"{line}\n" for line in real)) is not None
    assert same, "\n".join([f"$ {command}", *real, "--- and the page says", *page])
