"""`tessera dra-driver`, as people call it."""

from pathlib import Path

import pytest

from tessera.cli.app import run

CONFIGURATION = """
static:
- {resource: device.example.com/gpu, devices: device_0, env: {A: b}}
simulated: {product: Simulated H200-70GB, cards: 1%s}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration, and no cluster anywhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path / "devices.yaml"


def test_list_shows_what_would_be_offered(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, kinds, memory, ids and health in the order in which the scheduler takes them; nothing is left behind."""
    config.write_text(CONFIGURATION % ", layout: '2g.20gb=1,1g.10gb=1'")
    assert run(["dra-driver", "--config", str(config), "--node-name", "n", "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(row[0], row[1], row[2], row[3], row[-1]) for row in rows] == [
        ("device-0", "device", "-", "0Mi", "healthy"),
        ("gpu-0-mig-1g-10gb-4", "mig", "1g.10gb", "10240Mi", "healthy"),
        ("gpu-0-mig-2g-20gb-5", "mig", "2g.20gb", "20480Mi", "healthy"),
    ]
    assert [row[4][:4] for row in rows] == ["devi", "MIG-", "MIG-"]


def test_list_shows_every_place_of_cards_that_are_cut_on_demand(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slices have no id before they are cut; the whole card comes last."""
    config.write_text(CONFIGURATION % ", partitioning: dynamic, profiles: [3g.30gb]")
    assert run(["dra-driver", "--config", str(config), "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(row[0] for row in rows[1:6]) == [f"gpu-0-mig-3g-30gb-{start}" for start in range(5)]
    assert {row[4] for row in rows[1:6]} == {"-"}
    assert rows[6][0] == "gpu-0"


@pytest.mark.parametrize(
    ("more", "options", "code", "message"),
    [
        ("", [], 1, "no cluster"),
        (", partitioning: dynamic, layout: 7g.70gb=1", [], 2, "simulated.layout: not with partitioning: dynamic"),
        ("", ["--metrics-listen", "nonsense"], 2, "nonsense"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    more: str,
    options: list[str],
    code: int,
    message: str,
) -> None:
    """Before anything begins."""
    config.write_text(CONFIGURATION % more)
    assert run(["dra-driver", "--config", str(config), *options]) == code
    assert message in capsys.readouterr().err


def test_a_device_plugin_does_not_cut_on_demand(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which command does."""
    config.write_text(CONFIGURATION % ", partitioning: dynamic")
    assert run(["device-plugin", "--config", str(config)]) == 2
    assert "needs `tessera dra-driver`" in capsys.readouterr().err
