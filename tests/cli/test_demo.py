"""The demo: every story on the embedded cluster, and how the command ends."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tessera.cli.app import run
from tessera.simulation.stories import table as stories
from tessera.simulation.stories.pods import Runs
from tessera.simulation.stories.story import Submit

TESSERA = [sys.executable, "-m", "tessera"]


def test_every_story_ends_as_told(capsys, temporary, monkeypatch, soon):
    """All of them, webhook and device plugins included, in a few seconds; plain text in a file."""
    monkeypatch.setattr("tessera.simulation.cluster._TICK", 0.05)
    monkeypatch.setattr("tessera.rollout.carrying.Carrier.settles", 0.2)
    assert run(["demo"]) == 0
    text = capsys.readouterr().out
    assert f"{len(stories.STORIES)} of {len(stories.STORIES)} stories ended as expected" in text
    assert "\x1b" not in text
    for line in (
        "decided   2g.20gb → 1g.10gb: 2g.20gb is not offered, 1g.10gb is the first that is",
        "waits     Pending: 0/1 nodes are available: 1 Insufficient device.example.com/gpu.",
        "given     train: cpu: 7, memory: 14Gi, nvidia.com/shm: 2Gi",
        "offers    1g.10gb 0 → 25, 2g.20gb 8 → 0, 3g.30gb 4 → 0",
        "sees      /dev/mock/device_0, /dev/mock/device_1, /dev/mock/device_2, /dev/mock/device_3",
        "h200-medium  nvidia.com/mig-2g.20gb  8            2          6",
        "annotated namespace default: gpu-webhook.k8s.io/dra: first-available",
        "decided   2g.20gb becomes a claim for 2g.20gb, else 1g.10gb",
        "allocated 2g.20gb ×1, as asked",
        "allocated 1g.10gb ×1, the first that was free (2g.20gb → 1g.10gb)",
        "waits     Pending: 0/1 nodes are available: 1 cannot allocate all claims.",
    ):
        assert line in text
    assert not list(temporary.iterdir())


def test_names_stay_whole(capsys, monkeypatch):
    """On a narrow terminal lines are broken between words, and not in a device's UUID."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["demo", "--story", "smaller"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"UUID:\n +GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\)\n", text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_story_that_ends_otherwise(capsys, monkeypatch):
    """The exit code says so, and what was told is set against what happened."""
    (nodes, submit) = stories.STORIES[0].steps
    assert isinstance(submit, Submit)
    told = replace(submit, ends=Runs("elsewhere", "", {"main": {"nvidia.com/mig-2g.20gb": 1}}))
    wrong = replace(stories.STORIES[0], steps=(nodes, told))
    monkeypatch.setattr(stories, "STORIES", (wrong,))
    monkeypatch.setattr("tessera.simulation.stories.stage.TIMEOUT", 0.3)
    assert run(["demo"]) == 1
    text = capsys.readouterr().out
    assert "✗         expected fallback none, got 2g.20gb->1g.10gb" in text
    assert "✗         expected it to run on elsewhere, but it is Running on h200-small" in text
    assert "0 of 1 stories ended as expected" in text


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--story", "nope"], "there is no story nope; there are smaller, larger"),
        (["--pause"], "--pause waits for Enter, but there is no terminal"),
    ],
)
def test_bad_options(capsys, monkeypatch, args, complaint):
    """One sentence, exit 2, and nothing is started."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["demo", *args]) == 2
    assert complaint in capsys.readouterr().err


def test_list(capsys):
    """The stories by name."""
    assert run(["demo", "--list"]) == 0
    assert capsys.readouterr().out.startswith("smaller      A smaller slice\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_at_a_terminal(number, code, temporary):
    """A reader who leaves between two stories gets the prompt back at once, and nothing is left behind."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*TESSERA, "demo", "--fast", "--pause"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("Enter"):
                break
        assert list(temporary.iterdir()), "it runs, in a folder of its own"
        process.send_signal(number)
        rest, complaint = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
        os.close(terminal)
    assert process.returncode == code
    assert "Traceback" not in rest + complaint
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("words", [["demo"], ["demo", "--list"], ["demo", "--serve"]])
def test_an_installation_without_the_embedded_cluster(capsys, monkeypatch, words):
    """The image leaves the embedded cluster out: there, the command says in one sentence where to get it."""
    for name in [name for name in sys.modules if name.startswith("tessera.simulation")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "tessera demo: the container image does not contain the embedded cluster; run `pipx install .` in a clone "
        "of the project, then `tessera demo` (see tessera demo --help)\n"
    )
