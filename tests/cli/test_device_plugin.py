"""`tessera device-plugin` as a process: options, signals, complaints."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.cli.app import run as run_command
from tessera.simulation.kubelet import Kubelet
from tests.node.running import GPU, run, started

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO, THREE = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.30gb"


@asynccontextmanager
async def process(
    root: Path, *arguments: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command in a process of its own, ended by SIGTERM with exit code 0."""
    folders = {
        "TESSERA_KUBELET_DIR": str(root),
        "TESSERA_CDI_DIR": str(root / "cdi"),
        "TESSERA_STATE_DIR": str(root / "state"),
        "TESSERA_HOST_ROOT": str(root / "host"),
        "KUBECONFIG": str(root / "none"),
        "NODE_NAME": "node-1",
        **environment,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tessera", "device-plugin", *arguments,
        env={**os.environ, **folders}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield child
        child.send_signal(signal.SIGTERM)
        _, log = await child.communicate()
        assert child.returncode == 0, log.decode()
        assert "Traceback" not in log.decode()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def make_mock_devices(host: Path, *numbers: int) -> None:
    (host / "dev" / "mock").mkdir(parents=True, exist_ok=True)
    (host / "mock" / "lib").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        os.mkfifo(host / "dev" / "mock" / f"device_{number}")
        (host / "mock" / "lib" / f"device_{number}.so").touch()


def test_mock_devices_end_to_end() -> None:
    """The example: devices whose files are missing are unhealthy, and healthy as soon as the files are there."""

    async def story(root: Path) -> None:
        make_mock_devices(root / "host", 0, 1, 2)
        async with started(Kubelet(root)) as kubelet:
            async with process(root, "--config", str(EXAMPLES / "mock-devices.yaml")):
                await kubelet.until(lambda kubelet: kubelet.capacity == {GPU: 8})
                assert kubelet.allocatable == {GPU: 3}
                make_mock_devices(root / "host", 3, 4, 5, 6, 7)
                await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
                grant = (await kubelet.admit("ml/a", {GPU: 2}))[GPU]
                assert [each.name for each in grant.cdi_devices] == [f"{GPU}=device_0", f"{GPU}=device_1"]
            await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 0})
            assert [path.name for path in kubelet.folder.iterdir() if path.is_socket()] == ["kubelet.sock"]

    run(story)


def test_a_layout_file_is_followed_and_probes_answer() -> None:
    """Without a cluster the layout comes from a file; /readyz turns 200 when the kubelet knows all."""

    async def story(root: Path) -> None:
        layout = root / "layout"
        layout.write_text("7g.70gb=1")
        config = ("--config", str(EXAMPLES / "simulated-h200.yaml"), "--layout", str(layout))
        with_port = ("--metrics-listen", "127.0.0.1:0", "--log-level", "debug")
        async with (
            started(Kubelet(root)) as kubelet,
            process(root, *config, *with_port, TESSERA_LOG_FORMAT="json") as child,
        ):
            assert child.stderr is not None
            first = (await child.stderr.readline()).decode()
            port = int(re.findall(r"127\.0\.0\.1:(\d+)", first)[0])
            await kubelet.until(lambda kubelet: kubelet.allocatable == {"nvidia.com/mig-7g.70gb": 4})
            layout.write_text("2g.20gb=2,3g.30gb=1")
            await kubelet.until(
                lambda kubelet: kubelet.allocatable == {"nvidia.com/mig-7g.70gb": 0, TWO: 8, THREE: 4}
            )
            async with asyncio.timeout(10):
                while not (await fetch(port, "/readyz")).startswith("HTTP/1.1 200"):
                    await asyncio.sleep(0.05)
            page = await fetch(port, "/metrics")
            assert f'tessera_device_plugin_devices{{resource="{TWO}",health="healthy"}} 8\n' in page
            assert 'tessera_device_plugin_layout_state{state="success"} 1\n' in page

    run(story)


async def fetch(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


def test_fault_24_killed_and_started_again() -> None:
    """Kill -9 leaves specs and a dead socket; the next start takes over, with the same ids."""

    async def story(root: Path) -> None:
        config = ("--config", str(EXAMPLES / "simulated-h200.yaml"))
        async with started(Kubelet(root)) as kubelet:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tessera", "device-plugin", *config, "--kubelet-dir", str(root),
                "--cdi-dir", str(root / "cdi"), "--state-dir", str(root / "state"), "--node-name", "node-1",
                env={**os.environ, "KUBECONFIG": str(root / "none")}, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            await kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
            before = kubelet.devices
            child.kill()
            await child.wait()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 0, THREE: 0})
            assert len(list((root / "cdi").iterdir())) == 1
            async with process(root, *config):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {TWO: 8, THREE: 4})
                assert kubelet.devices.keys() == before.keys()
                assert len(list(kubelet.folder.glob("tessera-*.sock"))) == 2

    run(story)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "static: [{resource: x, devices: a, env: {A: b}}]",
            'config.yaml: static[0].resource: "x" is not an extended resource',
        ),
        ("static: [", "config.yaml: line 2, column 1: did not find expected node content"),
        ("{}", "config.yaml: no devices: at least one of static, simulated and nvml is needed"),
        ("# nothing yet\n", "config.yaml: no devices: at least one of static, simulated and nvml is needed"),
    ],
)
def test_a_bad_configuration_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    """Exit code 2 and what is wrong where, no traceback."""
    config = tmp_path / "config.yaml"
    config.write_text(text)
    assert run_command(["device-plugin", "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert "Traceback" not in error


@pytest.mark.parametrize("address", ["9400", "host:", ":99999", ":x", ":²", "::1:9400"])
def test_a_bad_address_is_a_sentence(capsys: pytest.CaptureFixture[str], address: str) -> None:
    """Exit code 2, and how an address is written."""
    arguments = [
        "device-plugin",
        "--config",
        str(EXAMPLES / "mock-devices.yaml"),
        "--metrics-listen",
        address,
    ]
    assert run_command(arguments) == 2
    assert "is not an address to listen on; write host:port" in capsys.readouterr().err


def test_the_list_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` prints every device and how it is, and writes nothing."""
    config = str(EXAMPLES / "simulated-h200.yaml")
    assert run_command(["device-plugin", "--config", config, "--state-dir", str(tmp_path), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert all(
        re.fullmatch(r"nvidia\.com/mig-[23]g\.[23]0gb  MIG-[0-9a-f-]{36}  healthy", line) for line in lines
    )
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_variable() -> None:
    """Each option can come from the environment, and the help says from which variable."""
    from tessera.cli.device_plugin import command

    text = " ".join(CliRunner().invoke(command, ["--help"], terminal_width=300).output.split())
    for name in (
        "CONFIG",
        "NODE_NAME",
        "KUBELET_DIR",
        "CDI_DIR",
        "STATE_DIR",
        "HOST_ROOT",
        "LAYOUT",
        "METRICS_LISTEN",
    ):
        assert f"TESSERA_{name}" in text


def test_no_nvml_here(tmp_path: Path) -> None:
    """Without a driver `--list` says so in one sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "tessera", "device-plugin", "--config", "-", "--list"],
        input="nvml:\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        pytest.skip("there is a driver")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"tessera: NVML: .*\n", done.stderr)
