"""`python -m tools.chart`: what is made from the chart, and what the chart takes from the code.

    deploy/tessera.yaml                 the chart rendered with its defaults, for `kubectl apply -f`
    charts/tessera/values.schema.json   `config`, `devicePlugin.config` and `draDriver.config` are what the code itself
                                        reads, `disabledAlerts` are alerts that there are
    charts/tessera/files/profiles.json  the MIG profiles of all products, for which the chart makes DeviceClasses

`--check` writes nothing and fails when something is not as it would be written.
"""

import argparse
import difflib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tessera.core.mig.geometry import PRODUCTS
from tessera.protocol.configuration import devices as device_schema
from tessera.protocol.configuration import webhook as config

PROJECT: Final = Path(__file__).resolve().parent.parent
CHART: Final = PROJECT / "charts" / "tessera"
SCHEMA: Final = CHART / "values.schema.json"
PROFILES: Final = CHART / "files" / "profiles.json"
DEPLOY: Final = PROJECT / "deploy" / "tessera.yaml"
NAMESPACE: Final = "gpu-webhook"

_HEAD: Final = """\
# Tessera's webhook, for `kubectl apply -f`: the chart in charts/tessera, rendered with its defaults by `make deploy`.
# REGISTRY in the image's name stands for where you have pushed yours: change it. What everything is for: docs/install.md.
"""
_REPOSITORY: Final = "REGISTRY/tessera"  # no name that a cluster would pull by accident
_HELMS_OWN: Final = ("app.kubernetes.io/managed-by: Helm", "helm.sh/chart: ")  # of no use without Helm


def helm() -> Path:
    """The helm of the PATH, else the one that the tests on a real cluster build."""
    if found := shutil.which("helm"):
        return Path(found)
    from e2e.cluster import program

    return program("helm")


def render(*arguments: str, namespace: str = NAMESPACE) -> str:
    """The chart's objects as YAML, without its tests."""
    options = [f"--namespace={namespace}", "--no-hooks", *arguments]
    command: list[str | Path] = [helm(), "template", "tessera", CHART, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"helm template failed: {done.stderr.strip()}")
    return done.stdout


def deployed() -> str:
    """What deploy/tessera.yaml should be."""
    lines = render("--set=namespace.create=true", f"--set=image.repository={_REPOSITORY}").splitlines()
    kept = [
        one for one in lines if not one.strip().startswith(_HELMS_OWN) and not one.startswith("# Source: ")
    ]
    text = "\n".join(kept).replace("\n\n---", "\n---")  # helm ends each template with an empty line
    return f"{_HEAD}{text.rstrip()}\n"


def schema() -> str:
    """What values.schema.json should be: as it is, with the parts that the code knows better."""
    document: dict[str, Any] = json.loads(SCHEMA.read_text())
    values = document["properties"]
    values["config"] = _described("Tessera's configuration (docs/configuration.md).", config.DOCUMENT.schema)
    devices = device_schema.DOCUMENT.schema
    values["devicePlugin"]["properties"]["config"] = _described(
        "The device plugin's configuration (docs/device-plugin.md).", devices
    )
    values["draDriver"]["properties"]["config"] = _described(
        "The DRA driver's configuration (docs/dra.md); empty: the device plugin's.", devices
    )
    values["prometheusRule"]["properties"]["disabledAlerts"]["items"]["enum"] = _alerts()
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def profiles() -> str:
    """What files/profiles.json should be: every MIG profile that a product has, smallest first."""
    found = sorted({profile for product in PRODUCTS for profile in product.profiles})
    return json.dumps([str(profile) for profile in found], indent=2) + "\n"


def _alerts() -> list[str]:
    """The names of all alerts."""
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def _described(text: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, **part}


def outdated() -> Iterator[tuple[Path, str]]:
    """Each file that is not as it should be, and how it should be."""
    for path, make in ((SCHEMA, schema), (PROFILES, profiles), (DEPLOY, deployed)):
        wanted = make()
        if not path.exists() or path.read_text() != wanted:
            yield path, wanted


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart")
    parser.add_argument("--check", action="store_true", help="write nothing, fail when something is outdated")
    check = parser.parse_args().check
    failed = False
    for path, wanted in outdated():
        if check:
            failed = True
            before = path.read_text().splitlines() if path.exists() else []
            sys.stdout.writelines(
                f"{line}\n"
                for line in difflib.unified_diff(
                    before, wanted.splitlines(), str(path), "as it should be", lineterm=""
                )
            )
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted)
            sys.stderr.write(f"{path.relative_to(PROJECT)} written\n")
    if failed:
        sys.exit("outdated: run `make deploy`")


if __name__ == "__main__":
    main()
