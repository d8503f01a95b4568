"""The processes that attacks are made on: real ones, in control groups, beside a stand-in API server."""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e.cluster.pki import Authority

from stress.limited import Group

PATIENCE_MIB: Final = 448  # the chart's limits
LAYOUTS_MIB: Final = 192
FULL_MIB: Final = 384
DASHBOARD_MIB: Final = 512
MOST_KEPT: Final = 1.15  # of the memory before, a minute after an attack
_AFTER: Final = 60.0  # seconds after which memory is back
CALM: Final = 8.0  # seconds until a process has read a small cluster
_KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
current-context: stress
clusters: [{name: stress, cluster: {server: "URL"}}]
users: [{name: stress, user: {}}]
contexts: [{name: stress, context: {cluster: stress, user: stress}}]
"""


def write_files(folder: Path, url: str, config: str) -> None:
    """Write what the processes read: how to reach the API server, and the webhook's configuration."""
    (folder / "kubeconfig").write_text(_KUBECONFIG.replace("URL", url))
    (folder / "config.yaml").write_text(config)


def command_of(process: str, folder: Path, port: int = 0) -> list[str]:
    """The command line of a process; `port` is where the webhook listens."""
    common = [f"--kubeconfig={folder}/kubeconfig"]
    logged = ["--metrics-listen=127.0.0.1:0", "--log-level=warning"]
    match process:
        case "webhook":
            pair = Authority(folder / "pki").issue("webhook", "webhook", hosts=["127.0.0.1"])
            certificate = [f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}"]
            config = [f"--config={folder}/config.yaml", f"--listen=127.0.0.1:{port}"]
            return ["webhook", *common, *logged, *certificate, *config]
        case "controller":
            config = ["--layouts", f"--config={folder}/config.yaml", "--tessera-namespace=gpu-webhook"]
            return ["controller", *common, *logged, *config]
        case "layouts":
            return ["controller", *common, *logged, "--layouts", "--tessera-namespace=gpu-webhook"]
        case _:
            return ["dashboard", *common, "--port=0"]


@contextmanager
def running(group: Group, command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `tessera` in a control group."""
    words = group.command(sys.executable, "-m", "tessera", *command)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def resident_mib(process: "subprocess.Popen[bytes]") -> float:
    """How many MiB a process takes; 0 once it has ended."""
    if process.poll() is not None:
        return 0.0
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def run_named(
    module: str,
    attacks: Mapping[str, Callable[[float], Coroutine[object, object, str]]],
    arguments: Sequence[str] | None,
) -> int:
    """Run all attacks, or some by name, and print what each says; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog=f"python -m stress.{module}")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*attacks, []])
    parser.add_argument("--after", type=float, default=_AFTER, help="seconds until memory is looked at again")
    options = parser.parse_args(arguments)
    wrong = False
    for name, attack in attacks.items():
        if not options.names or name in options.names:
            said = asyncio.run(attack(options.after))
            wrong |= said.startswith("WRONG")
            print(f"{name}: {said}", flush=True)
    return int(wrong)
