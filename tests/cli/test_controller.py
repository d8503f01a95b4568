"""`tessera controller`, as people call it."""

import pytest

from tessera.cli.app import run


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 1, "no cluster"),
        (["--metrics-listen", "nonsense"], 2, "nonsense"),
        (["--log-level", "loud"], 2, "loud"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(options, code, message, capsys):
    """An exit code, and no traceback."""
    assert run(["controller", *options]) == code
    assert message in capsys.readouterr().err


def test_help(capsys):
    """It says what it is for, and where its Lease is."""
    assert run(["controller", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fallback.dra: first-available" in text
    assert "default: the pod's, else gpu-webhook" in text
