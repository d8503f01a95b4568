"""On what it was measured."""

import datetime as dt
import os
import platform
import ssl
import subprocess
from importlib.metadata import version
from pathlib import Path


def describe(*, quick: bool) -> dict[str, str]:
    """The machine and the versions, in words."""
    libraries = ("msgspec", "uvloop", "httptools", "orjson")
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "effort": "quick" if quick else "full",
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "load before": " ".join(f"{one:.1f}" for one in os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {ssl.OPENSSL_VERSION}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in libraries),
        "go": _output("go", "env", "GOVERSION"),
        "client-go": _go_module("k8s.io/client-go"),
        "tessera": _output("git", "describe", "--always", "--dirty", "--exclude", "*"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _go_module(name: str) -> str:
    for line in (Path(__file__).parent / "peers" / "go.mod").read_text().splitlines():
        if line.strip().startswith(name + " "):
            return line.split()[1]
    return "unknown"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
