"""`python -m e2e.cluster` from the outside, as far as no cluster is needed."""

import pytest
from click.testing import CliRunner
from e2e.cluster.__main__ import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a cluster `dev` that seems to run, and programs that are there already."""
    programs, run = tmp_path / "programs", tmp_path / "run"
    (run / "dev").mkdir(parents=True)
    (run / "dev" / "kubeconfig").write_text("")
    programs.mkdir()
    for name in ("kubectl", "helm", "ctr"):
        (programs / name).write_text("")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("TESSERA_E2E_RUN", str(run))
    monkeypatch.setenv("TESSERA_E2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(programs))
    return run / "dev"


def _said(*words):
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.stdout, done.stderr


def test_env_of_a_control_plane(folder):
    """A shell gets the kubeconfig and a PATH with kubectl and helm; each folder once."""
    programs = folder.parents[1] / "programs"
    assert _said("env") == (0, f'export KUBECONFIG={folder}/kubeconfig\nexport PATH={programs}:"$PATH"\n', "")


def test_env_of_a_node(folder, monkeypatch):
    """A cluster with a node also tells ctr where its containerd is, and in which namespace the kubelet's images are."""
    monkeypatch.setattr("e2e.cluster.node.Network.of", lambda _: object())
    _, out, _ = _said("env")
    assert out.splitlines()[1:3] == [
        f"export CONTAINERD_ADDRESS={folder}/containerd.sock",
        "export CONTAINERD_NAMESPACE=k8s.io",
    ]


def test_env_does_not_build(folder):
    """Where helm is not built it is left out, and a line says how to have it."""
    (folder.parents[1] / "programs" / "helm").unlink()
    code, _, err = _said("env")
    assert (code, err) == (0, "helm is not built yet: `python -m e2e.cluster build --with helm`\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("env", "--name", "other"), "Error: there is no cluster 'other'; `python -m e2e.cluster up --name other` starts one"),
        (("load", "--name", "other", "x.tar"), "Error: there is no cluster 'other'; `python -m e2e.cluster up --name other` starts one"),
        (("load", "x.tar"), "Error: the cluster 'dev' has no node that could have images"),
    ],
)  # fmt: skip
def test_what_cannot_be(folder, words, complaint):
    """One sentence, exit code 2."""
    code, _, err = _said(*words)
    assert (code, err.splitlines()[-1]) == (2, complaint)


def test_load_wants_an_archive(folder, monkeypatch):
    """A name that is no file is answered with what is meant."""
    monkeypatch.setattr("e2e.cluster.node.Network.of", lambda _: object())
    code, _, err = _said("load", "tessera:latest")
    assert code == 2
    assert err.splitlines()[-1] == (
        "Error: tessera:latest: no such file; an archive is meant, such as `make image` or `docker save` write"
    )
