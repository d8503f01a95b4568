"""`tessera config`: check, example, schema, reference."""

import json
from pathlib import Path

from tessera.cli.app import run
from tessera.protocol import config


def test_check(capsys, tmp_path, monkeypatch):
    """A good file is said to be; a bad one gets every complaint and exit 2."""
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(config.EXAMPLE)
    Path("bad.yaml").write_text("fallback: {upgrade: true}\nextra: 1\n")
    assert run(["config", "check", "good.yaml"]) == 0
    assert capsys.readouterr().out == "good.yaml: fine (1 fallback chain; injection for GPU types: V100)\n"
    assert run(["config", "check", "bad.yaml"]) == 2
    assert capsys.readouterr().err == (
        "bad.yaml: extra: unknown field\n"
        'bad.yaml: fallback.upgrade: unknown field; did you mean "upgrades"?\n'
    )  # fmt: skip
    assert run(["config", "check", "none.yaml"]) == 2


def test_prints(capsys):
    """Example, schema and reference go to standard output."""
    assert run(["config", "example"]) == 0
    assert capsys.readouterr().out == config.EXAMPLE
    assert run(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Tessera configuration"
    assert run(["config", "reference"]) == 0
    assert capsys.readouterr().out == config.reference()
