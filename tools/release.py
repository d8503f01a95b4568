"""`python -m tools.release`: what a release needs that is made from the repository, for .github/workflows/release.yml.

version                            the newest version in CHANGELOG.md, or nothing; everything that names a version must agree
notes VERSION                      its section of CHANGELOG.md
chart IMAGE@DIGEST FOLDER          the chart with the published image in its values, to be packaged
krew REPOSITORY VERSION FILE...    the manifest of `kubectl krew install tessera`, for kubectl-tessera-OS-ARCH.tar.gz
"""

import argparse
import hashlib
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

PROJECT: Final = Path(__file__).resolve().parent.parent
CHART: Final = PROJECT / "charts" / "tessera"
_HEADING: Final = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}$", re.MULTILINE)
_ARCHIVE: Final = re.compile(r"kubectl-tessera-(?P<os>linux)-(?P<arch>amd64|arm64)\.tar\.gz")
_IMAGE: Final = re.compile(r"(?P<repository>[a-z0-9./_:-]+)@(?P<digest>sha256:[0-9a-f]{64})")


class ReleaseError(Exception):
    """Something that must not be released."""


def newest(changelog: str) -> str:
    """The version of the topmost section with a date; empty when nothing was ever released."""
    found = _HEADING.search(changelog)
    return found["version"] if found else ""


def notes(changelog: str, version: str) -> str:
    """The section of one version, without its heading."""
    headings = [*_HEADING.finditer(changelog)]
    for number, heading in enumerate(headings):
        if heading["version"] == version:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
            return changelog[heading.end() : end].strip() + "\n"
    raise ReleaseError(f'CHANGELOG.md has no section "## {version} - DATE"')


def named_versions(project: Path = PROJECT) -> Iterator[tuple[str, str]]:
    """Each place that names the version, and what it says."""
    package = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((project / "charts" / "tessera" / "Chart.yaml").read_text())
    dockerfile = re.search(r"^ARG VERSION=(.*)$", (project / "Dockerfile").read_text(), re.MULTILINE)
    yield "pyproject.toml", package
    yield "charts/tessera/Chart.yaml: version", chart["version"]
    yield "charts/tessera/Chart.yaml: appVersion", chart["appVersion"]
    yield "Dockerfile: VERSION", dockerfile[1] if dockerfile else ""


def check_versions(version: str, project: Path = PROJECT) -> None:
    """Refuse a release whose parts would call themselves by another version."""
    wrong = [f"{place} says {said}" for place, said in named_versions(project) if said != version]
    if wrong:
        raise ReleaseError(f"CHANGELOG.md says {version}, but {'; '.join(wrong)}")


def published_chart(image: str, folder: Path) -> Path:
    """A copy of the chart that needs no `image.repository`: it names the image that was published with it."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ReleaseError(f"{image}: expected an image and its digest, such as ghcr.io/x/tessera@sha256:…")
    copy = folder / "tessera"
    shutil.copytree(CHART, copy)
    values = copy / "values.yaml"
    text = values.read_text()
    for field in ("repository", "digest"):
        text, number = re.subn(rf'^  {field}: ""$', f"  {field}: {found[field]}", text, flags=re.MULTILINE)
        if number != 1:
            raise ReleaseError(f'values.yaml: expected one line "  {field}: \\"\\""')
    values.write_text(text)
    return copy


def krew(repository: str, version: str, archives: Sequence[Path]) -> str:
    """The plugin manifest; archives hold `kubectl-tessera` and `LICENSE`."""
    document: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "tessera"},
        "spec": {
            "version": f"v{version}",
            "homepage": f"https://github.com/{repository}",
            "shortDescription": "Show, check, plan and apply GPU slices (MIG)",
            "description": "Capacity of GPUs and MIG devices, layouts checked against the cards' geometry, plans for what\n"
            "pods wait for, and what is wrong with an installation of Tessera.\n",
            "platforms": [_platform(repository, version, archive) for archive in archives],
        },
    }
    return yaml.safe_dump(document, sort_keys=False)


def _platform(repository: str, version: str, archive: Path) -> dict[str, Any]:
    found = _ARCHIVE.fullmatch(archive.name)
    if found is None:
        raise ReleaseError(f"{archive.name}: expected kubectl-tessera-OS-ARCH.tar.gz")
    return {
        "selector": {"matchLabels": {"os": found["os"], "arch": found["arch"]}},
        "uri": f"https://github.com/{repository}/releases/download/v{version}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": "kubectl-tessera",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print, or write."""
    parser = argparse.ArgumentParser(prog="python -m tools.release")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version")
    commands.add_parser("notes").add_argument("version")
    chart = commands.add_parser("chart")
    chart.add_argument("image")
    chart.add_argument("folder", type=Path)
    plugin = commands.add_parser("krew")
    plugin.add_argument("repository")
    plugin.add_argument("version")
    plugin.add_argument("archives", nargs="+", type=Path)
    chosen = parser.parse_args(arguments)
    changelog = (PROJECT / "CHANGELOG.md").read_text()
    try:
        match chosen.command:
            case "version":
                if version := newest(changelog):
                    check_versions(version)
                sys.stdout.write(f"{version}\n")
            case "notes":
                sys.stdout.write(notes(changelog, chosen.version))
            case "chart":
                sys.stdout.write(f"{published_chart(chosen.image, chosen.folder)}\n")
            case _:
                sys.stdout.write(krew(chosen.repository, chosen.version, chosen.archives))
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
