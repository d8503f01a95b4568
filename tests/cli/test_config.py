"""`tessera config`: check, example, schema, reference."""

import io
import json
from pathlib import Path

from tessera.cli.app import run
from tessera.protocol.configuration import devices as device_schema
from tessera.protocol.configuration import webhook as config


def test_standard_input_is_named(capsys, monkeypatch):
    """Good or bad, it is called what it is."""
    for text, code in ((config.EXAMPLE, 0), ("extra: 1", 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(["config", "check", "-"]) == code
        assert "".join(capsys.readouterr()).startswith("standard input: ")


def test_the_other_configuration(capsys, tmp_path):
    """An operator who checks a device plugin's configuration is told where it belongs, whichever field it begins with."""
    for field in device_schema.DOCUMENT.schema["properties"]:
        (tmp_path / "devices.yaml").write_text(f"{field}:\n")
        assert run(["config", "check", str(tmp_path / "devices.yaml")]) == 2
        assert capsys.readouterr().err == (
            f"{tmp_path}/devices.yaml: {field}: belongs to the device plugin's configuration; "
            "see it with tessera device-plugin --config FILE --list\n"
        )


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
