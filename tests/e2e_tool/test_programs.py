"""Programs are found or built whole; the table names each once."""

import stat
from pathlib import Path

import pytest
from e2e.cluster import versions
from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.programs import program

# Stands in for Go: knows the three commands that a build uses. What it builds says "built"; FAIL makes it fail halfway.
_GO = """#!/bin/sh
case "$1 $2" in
"mod download") echo '{"GoMod": "/the/go.mod"}' ;;
"mod edit") echo '{"Go": "1.26.0", "Require": [{"Path": "k8s.io/api", "Version": "v0.0.0"}]}' ;;
"build -v")
    cp go.mod "$SEEN"
    while [ "$1" != -o ]; do shift; done
    mkdir -p "$2"
    echo "example.com/some/package" >&2
    echo built >"$2/kubectl" && chmod +x "$2/kubectl"
    test -z "$FAIL" || { echo "disk full" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def go(tmp_path, monkeypatch):
    """A machine with a cache of its own, and the stand-in as its only Go."""
    path = tmp_path / "bin" / "go"
    path.parent.mkdir()
    path.write_text(_GO)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("TESSERA_E2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEEN", str(tmp_path / "go.mod"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return path


def _cached(tmp_path: Path) -> list[str]:
    return sorted(
        path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != ".lock"
    )


def test_every_program_comes_from_one_module():
    """What clusters need is in the table, each program once."""
    built = [name for module in versions.GO_MODULES for name in module.programs]
    assert sorted(built) == sorted(
        [*versions.CONTROL_PLANE, *versions.NODE, *versions.OPTIONAL, *versions.NVIDIA]
    )


def test_a_missing_program_is_built_once(go, tmp_path):
    """The second time it is taken from the cache, and Go is not needed."""
    path = program("kubectl")
    assert path.read_text() == "built\n"
    assert path.parent.name.startswith(f"kubernetes-{versions.KUBERNETES}-")
    go.unlink()
    assert program("kubectl") == path


def test_unpublished_siblings_are_replaced(go, tmp_path):
    """The module asks for its siblings at v0.0.0, which is not published: v1.36.3's are v0.36.3."""
    program("kubectl")
    published = "v0." + versions.KUBERNETES.removeprefix("v1.")
    assert f"replace k8s.io/api => k8s.io/api {published}\n" in (tmp_path / "go.mod").read_text()


def test_a_failed_build_leaves_nothing(go, tmp_path, monkeypatch):
    """A build that fails after it wrote a file says why; the file is not taken for a program."""
    monkeypatch.setenv("FAIL", "yes")
    with pytest.raises(ClusterError, match="disk full"):
        program("kubectl")
    assert _cached(tmp_path) == []
    monkeypatch.delenv("FAIL")
    assert program("kubectl").read_text() == "built\n"


def test_leftovers_of_a_killed_build_go(go, tmp_path):
    """What a killed build left in the cache is removed by the next one."""
    leftover = tmp_path / "cache" / ".building-killed" / "out" / "kubectl"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("half")
    program("kubectl")
    assert _cached(tmp_path) == ["kubectl"]


def test_assets_come_first(go, tmp_path, monkeypatch):
    """A program in the folder that KUBEBUILDER_ASSETS names is used as it is; others are still built."""
    (tmp_path / "etcd").write_text("")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert program("etcd") == tmp_path / "etcd"
    assert program("kubectl").read_text() == "built\n"


def test_without_go_the_reason_is_told(go):
    """No Go and no program: the machine cannot, and the message says what would help."""
    go.unlink()
    with pytest.raises(Unavailable, match=r"Go is needed to build kubectl.*KUBEBUILDER_ASSETS"):
        program("kubectl")
