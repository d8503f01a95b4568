"""What a release is made of: the changelog decides, and everything that names a version agrees with it."""

import hashlib
import json

import jsonschema
import pytest
import yaml

from tools import release

CHANGELOG = """\
# Changelog

## Unreleased

### Added
- Later.

## 1.2.0 - 2027-01-02

### Added
- This.

## 1.1.0 - 2026-12-01
- That.
"""
DIGEST = "sha256:" + "a" * 64


def test_the_changelog_decides():
    """The newest section with a date is the version; what is unreleased is none."""
    assert release.newest(CHANGELOG) == "1.2.0"
    assert release.newest("# Changelog\n\n## Unreleased\n- x\n") == ""
    assert release.notes(CHANGELOG, "1.2.0") == "### Added\n- This.\n"
    assert release.notes(CHANGELOG, "1.1.0") == "- That.\n"
    with pytest.raises(release.ReleaseError, match=r'CHANGELOG.md has no section "## 2.0.0 - DATE"'):
        release.notes(CHANGELOG, "2.0.0")


def test_all_places_name_one_version():
    """Package, chart and image are one version today, and a release of another one is refused."""
    (version,) = {said for _, said in release.named_versions()}
    release.check_versions(version)
    with pytest.raises(
        release.ReleaseError, match=rf"CHANGELOG.md says 9.9.9, but pyproject.toml says {version}; "
    ):
        release.check_versions("9.9.9")


def test_the_published_chart_names_its_image(tmp_path):
    """It differs in the image's name and digest alone, and its values are valid."""
    copy = release.published_chart(f"ghcr.io/x/tessera@{DIGEST}", tmp_path)
    before = yaml.safe_load((release.CHART / "values.yaml").read_text())
    after = yaml.safe_load((copy / "values.yaml").read_text())
    assert after == {
        **before,
        "image": {**before["image"], "repository": "ghcr.io/x/tessera", "digest": DIGEST},
    }
    jsonschema.validate(after, json.loads((copy / "values.schema.json").read_text()))
    with pytest.raises(release.ReleaseError, match="expected an image and its digest"):
        release.published_chart("ghcr.io/x/tessera:1.2.0", tmp_path)


def test_krew(tmp_path):
    """A platform for each archive, with its address and its checksum."""
    archive = tmp_path / "kubectl-tessera-linux-amd64.tar.gz"
    archive.write_bytes(b"x")
    manifest = yaml.safe_load(release.krew("x/tessera", "1.2.0", [archive]))
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("tessera", "v1.2.0")
    assert len(manifest["spec"]["shortDescription"]) <= 50  # krew's limit
    assert manifest["spec"]["platforms"] == [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
            "uri": "https://github.com/x/tessera/releases/download/v1.2.0/kubectl-tessera-linux-amd64.tar.gz",
            "sha256": hashlib.sha256(b"x").hexdigest(),
            "bin": "kubectl-tessera",
        }
    ]
    with pytest.raises(release.ReleaseError, match="expected kubectl-tessera-OS-ARCH"):
        release.krew("x/tessera", "1.2.0", [tmp_path / "other.tar.gz"])


def test_the_command(capsys, monkeypatch, tmp_path):
    """As the workflow calls it: nothing to release prints an empty line, a mistake is one sentence."""
    monkeypatch.setattr(release, "newest", lambda _: "")
    release.main(["version"])
    assert capsys.readouterr().out == "\n"
    monkeypatch.setattr(release, "newest", lambda _: "9.9.9")
    with pytest.raises(SystemExit, match=r"error: CHANGELOG.md says 9.9.9, but "):
        release.main(["version"])
