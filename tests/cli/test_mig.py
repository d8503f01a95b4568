"""`tessera mig` from the outside: what it prints, and how it exits."""

import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera.cli.app import run
from tessera.cli.common.output import Style, make_safe
from tessera.cli.mig.tiles import draw_cards
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, Slot
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig

RUNAI = """\
version: v1
mig-configs:
  selected:
  - devices: [0, 1, 2, 3]
    mig-enabled: true
    mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]
"""
PARTED = """\
version: v1
mig-configs:
  all-3g:
  - {devices: all, mig-enabled: true, mig-devices: {3g.71gb: 2}}
  all-4g:
  - {devices: all, mig-enabled: true, mig-devices: {4g.71gb: 2}}
"""


def node(name, layout=None, **labels):
    known = {
        "product": "nvidia.com/gpu.product",
        "memory": "nvidia.com/gpu.memory",
        "count": "nvidia.com/gpu.count",
    }
    known["strategy"] = "nvidia.com/mig.strategy"
    metadata = {"name": name, "labels": {known[key]: value for key, value in labels.items()}}
    if layout is not None:
        metadata["annotations"] = {"run.ai/mig.config": layout}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def whole(name, cards):
    """A node with whole H200s."""
    amounts = {"nvidia.com/gpu": str(cards)}
    one = node(name, product="NVIDIA-H200", count=str(cards), strategy="mixed")
    return one | {"status": {"capacity": amounts, "allocatable": amounts}}


NODES = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        node("sim", RUNAI, product="NVIDIA-H200", memory="71680", count="4", strategy="mixed"),
        node("tight", "3g.71gb=2,1g.18gb=1", product="NVIDIA-H200", memory="143771", count="2"),
        node("broken", "mig-configs: [", product="NVIDIA-H200", memory="143771", count="2"),
        node("single", "3g.71gb=1,4g.71gb=1", product="NVIDIA-H200", count="1", strategy="single"),
        node("strange", RUNAI, product="Tesla-T4", count="1"),
        node("unlabelled", RUNAI),
        node("plain"),
    ],
}

H200_HAS = "1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb"


@pytest.fixture
def tessera(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*args, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run(["mig", *args])
        out, err = capsys.readouterr()
        return code, out, err

    runner: Any = call
    runner.folder = tmp_path
    return runner


@pytest.mark.parametrize(
    ("args", "stdin", "code", "out"),
    [
        (["-", "--product", "H200-70GB"], RUNAI, 0, "standard input: fits: nvidia.com/mig-2g.20gb ×8, nvidia.com/mig-3g.30gb ×4\n"),
        (["--product", "H200-70GB", "--cards", "5"], RUNAI, 0, "standard input: fits: nvidia.com/gpu ×1, nvidia.com/mig-2g.20gb ×8, nvidia.com/mig-3g.30gb ×4\n"),
        (["--product", "H200"], RUNAI, 3, "standard input: does not fit: cards 0-3: unknown profiles 2g.20gb and 3g.30gb for NVIDIA H200; it has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb\n"),
        (["--product", "H200-70GB", "--cards", "2"], RUNAI, 3, "standard input: does not fit: cards 2-3: not there; the node has cards 0-1\n"),
        ([], RUNAI, 0, "standard input: readable: to check whether it fits, give --product\n"),
        (["3g.71gb=2", "--product", "H200"], "", 0, "counts: fits: nvidia.com/mig-3g.71gb ×2\n"),
        (["3g.71gb=2,1g.18gb=1", "--product", "H200"], "", 3, "counts: does not fit: card 0: 3g.71gb ×2 + 1g.18gb need 9 memory slices, an H200 has 8\n"),
        (["-", "--product", "H200"], PARTED, 3, "standard input: all-3g: fits: nvidia.com/mig-3g.71gb ×2\nstandard input: all-4g: does not fit: card 0: 4g.71gb ×2 is more than the 1 an H200 holds\n"),
        (["-", "--product", "H200", "--mig-config", "all-3g", "--cards", "8"], PARTED, 0, "standard input: all-3g: fits: nvidia.com/mig-3g.71gb ×16\n"),
    ],
)  # fmt: skip
def test_validate(tessera, args, stdin, code, out):
    """A layout fits, or the reason is reported, and the exit code says which."""
    assert tessera("validate", *args, stdin=stdin) == (code, out, "")


@pytest.mark.parametrize("dump", [json.dumps, yaml.dump])
def test_validate_nodes(tessera, dump):
    """Annotations of nodes are checked against what the nodes' labels say of their cards."""
    code, out, err = tessera("validate", stdin=dump(NODES))
    assert (code, err) == (3, "")
    assert out.splitlines() == [
        "node sim: fits: nvidia.com/mig-2g.20gb ×8, nvidia.com/mig-3g.30gb ×4",
        "node tight: does not fit: cards 0-1: 3g.71gb ×2 + 1g.18gb need 9 memory slices, an H200 has 8",
        next(line for line in out.splitlines() if line.startswith("node broken: cannot be checked: run.ai/mig.config:")),
        "node single: does not fit: MIG strategy single: one profile on all cards, not 3g.71gb and 4g.71gb; use strategy mixed",
        'node strange: cannot be checked: unknown product "Tesla-T4"; set it with --product',
        "node unlabelled: cannot be checked: no label nvidia.com/gpu.product; set it with --product",
    ]  # fmt: skip


def test_validate_as_json(tessera):
    """Verdicts are there for scripts too."""
    code, out, _ = tessera("validate", "3g.71gb=1", "4g.71gb=2", "--product", "H200", "-o", "json")
    assert code == 3
    assert json.loads(out) == [
        {"layout": "counts", "outcome": "fits", "reasons": [], "resources": {"nvidia.com/mig-3g.71gb": 1}},
        {
            "layout": "counts",
            "outcome": "does not fit",
            "reasons": ["card 0: 4g.71gb ×2 is more than the 1 an H200 holds"],
            "resources": {},
        },
    ]


@pytest.mark.parametrize(
    ("args", "stdin", "err"),
    [
        (["validate", "nowhere.yaml"], "", "tessera: nowhere.yaml: no such file or directory\n"),
        (["validate", "", "--product", "H200"], "", "tessera: the name of a file is empty\n"),
        (["validate", ",".join([f"1g.{n}gb=1" for n in range(10, 60)] + ["one=1"])], "", 'tessera: counts: "one" is not a MIG profile such as 1g.10gb or 1g.10gb+me\n'),
        (["validate", "3g.71gb", "--product", "H200"], "", "tessera: 3g.71gb: no such file or directory; for counts write 3g.71gb=1\n"),
        (["fit", "3g.71gb,1g.18gb", "--product", "H200"], "", "tessera: 3g.71gb,1g.18gb: no such file or directory; for counts write 3g.71gb=1,1g.18gb=1\n"),
        (["validate", "-", "-"], RUNAI, "tessera: standard input (-) can be read only once\n"),
        (["validate"], "", "tessera: standard input: empty; expected a layout\n"),
        (["validate"], "kind: Node\nmetadata: {name: a}\n", "tessera: standard input: no node with the annotation run.ai/mig.config\n"),
        (["validate"], "kind: Node\nmetadata: 3\n", "tessera: standard input: metadata: expected object, got int\n"),
        (["validate"], "x: 1", "tessera: standard input: x: unknown field; known are version, mig-configs\nstandard input: mig-configs: expected a map of configurations, at least one\n"),
        (["validate", "3g.71gb=1", "--product", "V100"], "", None),
        (["validate", "--mig-config", "x"], PARTED, 'tessera: no configuration "x"; there are all-3g, all-4g\n'),
        (["show", "3g.71gb=1"], "", "tessera: counts: which product are the cards? Say it with --product\n"),
        (["convert", "--to", "runai", "3g.71gb=1"], "", "tessera: devices: all: run.ai's format names cards one by one; give their number with --cards N\n"),
        (["convert", "--to", "counts", "3g.71gb=1", "3g.71gb=1"], "", "tessera: 2 layouts (3g.71gb=1, 3g.71gb=1); convert takes one at a time: give it one of them\n"),
        (["convert", "--to", "counts"], json.dumps(NODES), "tessera: 6 layouts (node sim, node tight, node broken, node single, node strange and 1 more); convert takes one at a time: give it one node, as kubectl get node NAME -o yaml prints it\n"),
        (["convert", "--to", "counts"], PARTED, None),
        (["fit", "1g.18gb=1"], "", "tessera mig fit: give the cards in one way: --product H200 --cards 4, or --from FILE (see tessera mig fit --help)\n"),
        (["fit", "1g.18gb=1", "--product", "H200", "--from", "x"], "", "tessera mig fit: give the cards in one way: --product H200 --cards 4, or --from FILE (see tessera mig fit --help)\n"),
        (["fit", "1g.18gb=1", "--product", "H200", "--max-nodes", "1"], "", "tessera mig fit: use --keep, --max-nodes, --max-cards and --mig-parted only with --from (see tessera mig fit --help)\n"),
        (["fit", "1g.18gb=1", "--from", "-", "--cards", "2"], "", "tessera mig fit: use --cards only with --product (see tessera mig fit --help)\n"),
        (["fit", "-", "--product", "H200"], "[]", "tessera: standard input: expected counts such as 2g.20gb=5,3g.40gb=2, or a map of them\n"),
        (["fit", "-", "--product", "H200"], "1g.18gb: [1, 2]", 'tessera: standard input: "1g.18gb=a list": expected a count from 0 to 9999, such as 1g.18gb=2\n'),
        (["fit", "-", "--product", "H200"], "1g.18gb: '1 2g.35gb=2'", 'tessera: standard input: "1g.18gb=1 2g.35gb=2": expected a count from 0 to 9999, such as 1g.18gb=2\n'),
        (["fit", "-", "--product", "H200"], "items: [{kind: Node, metadata: {name: a}}]", 'tessera: standard input: "items" is not a MIG profile such as 1g.10gb or 1g.10gb+me\n'),
        (["fit", "1g.18gb=1", "--product", "H200=0"], "", "tessera: --product H200=0: expected a number of cards from 1 to 1024, such as H200=4\n"),
        (["fit", "1g.18gb=1", "--product", "H200", "--product", "A30=1"], "", "tessera: --product H200: with several products give the number of each: H200=4\n"),
        (["fit", "1g.18gb=1", "--product", "H200=2", "--cards", "3"], "", "tessera: --product H200=2 and --cards 3: give the number only once\n"),
        (["fit", "1g.18gb=1", "--from", "-"], json.dumps(node("a", product="Tesla-T4")), 'node a: skipped: unknown product "Tesla-T4"\ntessera: standard input: no node has cards that could be cut\n'),
        (["fit", "1g.18gb=1", "--from", "-"], json.dumps(node("a", product="NVIDIA-H200", count="9999")), 'node a: skipped: no number of cards for "NVIDIA-H200"\ntessera: standard input: no node has cards that could be cut\n'),
        (["fit", "1g.18gb=1", "--from", "-"], json.dumps(node("a")), "tessera: standard input: no node with GPUs\n"),
    ],
)  # fmt: skip
def test_bad_input(tessera, args, stdin, err):
    """Bad input is one sentence each on standard error, and exit code 2."""
    code, out, told = tessera(*args, stdin=stdin)
    assert (code, out) == (2, "")
    assert told == err or err is None
    assert "Traceback" not in told


def test_the_help_tells_of_layouts_that_are_only_read(tessera):
    """What exit code 0 means is said for layouts without a product too."""
    assert "exit code 0 if it can be" in " ".join(tessera("validate", "--help")[1].split())


def test_convert(tessera):
    """A layout goes to another format, and what is lost on the way is reported."""
    (tessera.folder / "a.yaml").write_text(RUNAI)
    assert tessera("convert", "a.yaml", "--to", "counts") == (0, "2g.20gb=2,3g.30gb=1\n", "")
    code, out, _ = tessera("convert", "a.yaml", "--to", "mig-parted", "--name", "two-and-one")
    assert code == 0
    assert list(mig.read(out).configs) == ["two-and-one"]
    code, out, _ = tessera(
        "convert", "3g.71gb=1,4g.71gb=1", "--to", "runai", "--cards", "2", "--product", "H200"
    )
    assert "position: 4" in out
    code, out, err = tessera("convert", "--to", "counts", stdin=out)
    assert (code, out) == (0, "4g.71gb=1,3g.71gb=1\n")
    assert err == "Warning: positions are left out: counts has none\n"
    code, out, _ = tessera("convert", "--to", "counts", "--mig-config", "all-4g", stdin=PARTED)
    assert (code, out) == (0, "4g.71gb=2\n")
    code, out, _ = tessera("convert", "--to", "counts", stdin=json.dumps(NODES["items"][0]))
    assert (code, out) == (0, "2g.20gb=2,3g.30gb=1\n")


def test_cards_are_drawn_to_scale(tessera):
    """Cards are drawn to scale, those that are alike once, and without colour where there is no terminal."""
    code, out, err = tessera("show", "--product", "H200-70GB", "--cards", "5", stdin=RUNAI)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "cards 0-3  Simulated H200-70GB, 2×2g.20gb + 1×3g.30gb",
        "┌───────────────┬───────────────┬───────────────────────┐",
        "│2g.20gb        │2g.20gb        │3g.30gb                │",
        "│               │               │                       │",
        "└───────────────┴───────────────┴───────────────────────┘",
        " 0       1       2       3       4       5       6",
        "card 4  Simulated H200-70GB, MIG off",
        "┌───────────────────────────────────────────────────────┐",
        "│whole GPU                                              │",
        "│                                                       │",
        "└───────────────────────────────────────────────────────┘",
        " 0       1       2       3       4       5       6",
    ]


def test_show_nodes(tessera):
    """Nodes are drawn one after the other; one that cannot be drawn does not hide the others."""
    code, out, err = tessera("show", stdin=json.dumps(NODES))
    assert code == 1
    assert out.startswith("node sim\ncards 0-3  Simulated H200-70GB")
    assert "node single\ncard 0  H200, 1×3g.71gb + 1×4g.71gb" in out
    assert 'node strange: unknown product "Tesla-T4"' in err


def test_narrow_terminals(tessera, monkeypatch):
    """Where tiles do not fit, each is a line with its memory slices: a terminal never breaks the picture."""
    words = ("show", "4g.71gb=1,2g.35gb=1,1g.18gb+me=1", "--product", "H200")
    monkeypatch.setenv("COLUMNS", "65")
    drawn = tessera(*words)[1]
    assert max(map(len, drawn.splitlines())) == 65
    monkeypatch.setenv("COLUMNS", "64")
    assert tessera(*words)[1].splitlines() == [
        "card 0  H200, 1×1g.18gb+me + 1×2g.35gb + 1×4g.71gb",
        "  0-3   4g.71gb",
        "  4-5   2g.35gb",
        "  6     1g.18gb +me",
        "  7     not usable",
    ]
    monkeypatch.delenv("COLUMNS")
    assert tessera(*words)[1] == drawn  # no terminal, no limit


def test_slices_that_no_device_can_have(tessera):
    """The eighth slice beside seven 1g is not free: they have all compute slices. Beside six of them it is room for one more."""
    full = tessera("show", "1g.18gb=7", "--product", "H200")[1].splitlines()
    assert [full[2][-9:], full[3][-9:]] == ["│not    │", "│usable │"]
    six = tessera("show", "1g.18gb=6", "--product", "H200")[1].splitlines()
    assert six[2].startswith("│free   │1g.18gb")
    assert six[2].endswith("│not    │")


def test_one_profile_by_two_names(tessera):
    """Some boards call the whole A100-80GB 7g.79gb: lists of profiles say that it is 7g.80gb, and a wrong name is answered so."""
    assert tessera("products", "A100-80GB")[1].split("4g.40gb ")[1] == "7g.80gb (on some boards 7g.79gb)\n"
    code, out, _ = tessera("validate", "7g.40gb=1", "--product", "A100-80GB")
    assert code == 3
    assert "4g.40gb, 7g.80gb (on some boards 7g.79gb)" in out


def test_tiles_in_colour():
    """Tiles have the colour of their profile, or of their use where it is known; all of it is seen without, too."""
    product = product_named("H200")
    card = CardLayout.cut(product, [Wish(MigProfile.parse("1g.18gb+me"), 1), MigProfile(3, 71)])
    used = frozenset({Slot(0, card.instances[1])})
    plain = list(draw_cards([card], Style(enabled=False), used))
    assert plain[2:4] == [
        "│free   │1g.18gb│free           │3g.71gb                        │",
        "│       │+me    │               │in use                         │",
    ]
    coloured = list(map(make_safe, draw_cards([card], Style(enabled=True))))
    assert "\x1b[30;46m1g.18gb\x1b[0m" in coloured[2]
    assert "in use" not in coloured[3]
    in_use = list(map(make_safe, draw_cards([card], Style(enabled=True), used)))
    assert "\x1b[30;42m1g.18gb\x1b[0m" in in_use[2]
    assert f"\x1b[30;43m{'3g.71gb':<31}\x1b[0m" in in_use[2]


def test_plan(tessera):
    """A plan is printed in sentences and a table; something left out is exit code 3."""
    assert tessera("fit", "2g.20gb=5,3g.30gb=2", "--product", "H200-70GB", "--cards", "4") == (
        0,
        (
            "all 7 devices fit on 3 of 4 cards; fewer cards do not suffice\n"
            "beside the demand: 2g.20gb ×2 fill the rest of cut cards\n"
            "not needed: card 3\n"
            "\n"
            "CARDS  PRODUCT              DEVICES\n"
            "0-1    Simulated H200-70GB  2g.20gb ×2 + 3g.30gb ×1\n"
            "2      Simulated H200-70GB  2g.20gb ×1 + 2g.20gb ×2 (fills)\n"
            "3      Simulated H200-70GB  -\n"
        ),
        "",
    )
    code, out, _ = tessera("fit", "2g.20gb=5,3g.30gb=2", "--product", "H200-70GB", "--leave-rest")
    assert (code, out.splitlines()[-1]) == (0, "2      Simulated H200-70GB  2g.20gb ×1")
    code, out, _ = tessera("fit", "3g.71gb=5,1g.6gb=3", "--product", "H200=2", "--product", "A30=1")
    assert code == 3
    assert out.splitlines()[:2] == [
        "7 of 8 devices fit, on 3 of 3 cards; no plan serves more devices",
        "left out: 3g.71gb ×1, no room is left for it",
    ]


@pytest.mark.parametrize("form", ["runai", "mig-parted", "operator"])
def test_layouts_that_leave_some_out(tessera, form):
    """Layouts do not say what they do not serve: standard error does, beside exit code 3."""
    (tessera.folder / "node.json").write_text(json.dumps(whole("gpu-1", 1)))
    cards = ["--from", "node.json"] if form == "operator" else ["--product", "H200", "--cards", "1"]
    code, _, err = tessera("fit", "3g.71gb=3", *cards, "-o", form)
    left_out = "left out: 3g.71gb ×1, no room is left for it"
    assert (code, err.splitlines()) == (
        3,
        ["2 of 3 devices fit, on 1 of 1 card; no plan serves more devices", left_out],
    )


def test_a_plan_for_nothing(tessera):
    """Counts of zero are no demand: that is said, and a program gets a plan for nothing."""
    words = "the demand is empty: no layout is needed\n"
    assert tessera("fit", "3g.71gb=0", "--product", "H200") == (0, "", words)
    code, out, err = tessera("fit", "3g.71gb=0", "--product", "H200", "-o", "json")
    assert (code, json.loads(out)["cards"], err) == (0, [], words)


def test_plan_on_as_many_cards_as_needed(tessera):
    """Without a number of cards the plan says how many it takes."""
    (tessera.folder / "demand.yaml").write_text("1g.18gb: 20\n3g.71gb: 6\n")
    code, out, _ = tessera("fit", "demand.yaml", "--product", "H200")
    assert code == 0
    assert out.splitlines()[0] == "all 26 devices fit on 6 of 6 cards; fewer cards do not suffice"


def test_plan_of_an_unknown_profile(tessera):
    """Where no card has a profile, the plan says which ones there are, however many cards there are."""
    why = f"left out: 2g.20gb ×1, unknown profile 2g.20gb for NVIDIA H200; it has {H200_HAS}"
    assert tessera("fit", "2g.20gb=1", "--product", "H200") == (
        3,
        f"0 of 1 device fit; no plan serves more devices\n{why}\n",
        "",
    )
    code, out, _ = tessera("fit", "2g.20gb=1", "--product", "H200", "--cards", "4")
    assert (code, out.splitlines()[1]) == (3, why)


def test_plan_on_a_mixed_cluster(tessera):
    """Nodes whose cards cannot be cut, or not be known, are passed over, and that is reported."""
    nodes = [
        node("v100-1", product="Tesla-V100-SXM2-32GB", count="8"),
        node("broken", "mig-configs: [", product="NVIDIA-H200", count="2"),
        whole("h200-1", 2),
    ]
    stdin = json.dumps({"kind": "NodeList", "items": nodes})
    code, out, err = tessera("fit", "3g.71gb=4", "--from", "-", "--keep", stdin=stdin)
    assert code == 0
    assert err.splitlines()[0] == 'node v100-1: skipped: unknown product "Tesla-V100-SXM2-32GB"'
    assert err.splitlines()[1].startswith("node broken: skipped: run.ai/mig.config: ")
    assert out.splitlines()[-1] == "h200-1  0-1    H200     3g.71gb ×2  gpu ×1"


def test_plan_beside_what_is_there(tessera):
    """Devices of present layouts can be kept; every node gets its own layout."""
    nodes = {
        "kind": "NodeList",
        "items": [
            node("a", "{mig-configs: {selected: [{devices: [0], mig-devices: [{name: 3g.71gb, position: 0}]}]}}", product="NVIDIA-H200", count="1"),
            whole("b", 2),
            node("no-gpu"),
        ],
    }  # fmt: skip
    (tessera.folder / "nodes.json").write_text(json.dumps(nodes))
    code, out, _ = tessera("fit", "1g.18gb=3,7g.141gb=1", "--from", "nodes.json", "--keep")
    assert code == 0
    assert out.splitlines() == [
        "all 4 devices fit on 2 of 3 cards; fewer empty cards do not suffice",
        "to change: 2 cards of nodes a, b",
        "removed: gpu ×1; added: 1g.18gb ×3, 7g.141gb ×1",
        "not needed: 1 empty card",
        "",
        "NODE  CARDS  PRODUCT  DEVICES                          REMOVED",
        "a     0      H200     3g.71gb ×1 (stays) + 1g.18gb ×3  -",
        "b     0      H200     7g.141gb ×1                      gpu ×1",
        "b     1      H200     -                                -",
    ]
    code, out, _ = tessera("fit", "1g.18gb=3,7g.141gb=1", "--from", "nodes.json", "--keep", "-o", "runai")
    documents = out.split("---\n")
    assert [text.splitlines()[0] for text in documents] == ["# node a", "# node b"]
    layout = mig.read_layout(documents[0], [product_named("H200")])
    assert [str(i) for i in layout.cards[0].instances] == [
        "3g.71gb at 0",
        "1g.18gb at 4",
        "1g.18gb at 5",
        "1g.18gb at 6",
    ]
    assert documents[0].splitlines()[1:3] == [
        "# removed: nothing; added: 1g.18gb ×3",
        "# in all: removed: gpu ×1; added: 1g.18gb ×3, 7g.141gb ×1",
    ]
    assert documents[1].splitlines()[1] == "# removed: gpu ×1; added: 7g.141gb ×1"
    code, out, _ = tessera("fit", "1g.18gb=3,7g.141gb=1", "--from", "nodes.json", "-o", "mig-parted")
    assert list(mig.read(out).configs) == ["b"]  # one node is enough, and the other stays as it is
    assert out.splitlines()[0] == (
        "# node b: removed: gpu ×2; added: 1g.18gb ×7, 7g.141gb ×1 (beside the demand: 1g.18gb ×4)"
    )
    wanted = "1g.18gb=3,7g.141gb=2"
    code, out, _ = tessera("fit", wanted, "--from", "nodes.json", "--keep", "-o", "mig-parted")
    assert list(mig.read(out).configs) == ["a", "b"]
    assert out.splitlines()[:3] == [
        "# node a: removed: nothing; added: 1g.18gb ×3",
        "# node b: removed: gpu ×2; added: 7g.141gb ×2",
        "# in all: removed: gpu ×2; added: 1g.18gb ×3, 7g.141gb ×2",
    ]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_plan_as_document(tessera, output):
    """A plan is there for scripts too."""
    code, out, _ = tessera(
        "fit", "3g.71gb=1,2g.20gb=1", "--product", "H200", "--objective", "memory", "-o", output
    )
    assert code == 3
    assert yaml.load(out) == {
        "demand": {"3g.71gb": 1, "2g.20gb": 1},
        "served": {"3g.71gb": 1},
        "leftOut": {"2g.20gb": 1},
        "objective": "memory",
        "optimal": True,
        "gap": 0,
        "cost": {"nodes": [], "cards": 1},
        "explanation": [
            "1 of 2 devices fits, on 1 of 1 card; no plan serves more memory",
            f"left out: 2g.20gb ×1, unknown profile 2g.20gb for NVIDIA H200; it has {H200_HAS}",
            "beside the demand: 3g.71gb ×1 fills the rest of cut cards",
        ],
        "removed": {},
        "added": {},
        "filled": {"3g.71gb": 1},
        "nodes": [],
        "configurations": {},
        "cards": [
            {
                "card": 0,
                "product": "NVIDIA H200",
                "migEnabled": True,
                "devices": [{"profile": "3g.71gb", "position": at, "size": 4} for at in (0, 4)],
            }
        ],
    }


def sessions(path):
    """Commands of a page's console blocks, each with what it prints."""
    blocks = re.findall(r"```console\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    return [
        pytest.param(command, printed, id=command)
        for block in blocks
        for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("command", "printed"),
    [one for page in ("mig-layouts.md", "mig-planning.md") for one in sessions(DOCS / page)],
)
def test_the_page_tells_the_truth(tessera, command, printed, monkeypatch):
    """Every command on the pages prints what the pages say."""
    monkeypatch.chdir(DOCS.parent)
    words = shlex.split(command)
    assert words[:2] == ["tessera", "mig"]
    _, out, err = tessera(*words[2:])
    assert out + err == printed
