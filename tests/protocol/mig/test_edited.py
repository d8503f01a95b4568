"""mig-manager's file, edited: what is added and removed, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInput
from tessera.protocol import yaml
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.edited import edited, entries_text

TEXT = """\
# ours
version: v1
mig-configs:
  # nothing cut
  all-disabled:
    - devices: all
      mig-enabled: false   # off

  # seven
  all-1g.10gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7   # each
  tessera-old: # gone soon
    - devices: [0]
      mig-enabled: true
      mig-devices: {1g.10gb: 7}

# the end
"""
THREES = mig.read("3g.40gb=2").select()
NEW = """\
  tessera-new:
  - devices: all
    mig-enabled: true
    mig-devices:
      3g.40gb: 2
"""


def test_lines_stay():
    """An entry comes behind the last one, an entry goes with its lines, and every other line is as it was."""
    found = edited(TEXT, {"tessera-new": THREES}, ["tessera-old"], "x")
    head, _, _ = TEXT.partition("  tessera-old")
    assert (found.text, found.comments_lost) == (head + NEW + "\n# the end\n", False)
    assert entries_text({"tessera-new": THREES}) == "".join(line[2:] + "\n" for line in NEW.splitlines())


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (TEXT.rstrip("\n"), False),
        (TEXT.replace("\n", "\r\n"), False),
        ("mig-configs:\n  a:\n  - {devices: all, mig-enabled: false}", False),
        ("mig-configs:\n  a:\n  - {devices: all, mig-enabled: false}\nversion: v1\n", False),
        ("{version: v1, mig-configs: {a: [{devices: all, mig-enabled: false}]}}  # short", True),
        ("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}", False),
        ('{"version": "v1", "mig-configs": {"a": [{"devices": "all", "mig-enabled": false}]}}', False),
        ("version: v1\nmig-configs:\n  a: &off\n  - {devices: all, mig-enabled: false}\n  b: *off\n", False),
    ],
)
def test_what_else_is_there_keeps_its_meaning(text, lost):
    """However the document is written; only where its lines cannot be kept are its comments lost, and that is reported."""
    before = yaml.load(text)
    found = edited(text, {"tessera-new": THREES}, [], "x")
    after = yaml.load(found.text)
    entry = [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}]
    assert after == {**before, "mig-configs": {**before["mig-configs"], "tessera-new": entry}}
    assert found.comments_lost is lost
    again = edited(found.text, {}, ["tessera-new"], "x")
    assert yaml.load(again.text) == before


_NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,8}[a-z0-9]", fullmatch=True).filter(lambda name: name not in ("no", "on", "off", "yes", "null", "true", "false"))  # fmt: skip
_CONFIGS = st.dictionaries(
    _NAMES,
    st.lists(
        st.fixed_dictionaries(
            {
                "devices": st.sampled_from(["all", [0], [0, 1]]),
                "mig-enabled": st.sampled_from([True]),
                "mig-devices": st.dictionaries(
                    st.sampled_from(["1g.10gb", "2g.20gb"]), st.integers(1, 7), max_size=2
                ),
            }
        ),
        min_size=1,
        max_size=2,
    ),
    min_size=1,
    max_size=4,
)


@given(_CONFIGS, st.data())
def test_added_and_removed(configs, data):
    """For every document: exactly these come, exactly those go."""
    gone = data.draw(st.sets(st.sampled_from(sorted(configs))))
    text = yaml.dump({"version": "v1", "mig-configs": configs})
    found = edited(text, {"tessera-new": THREES}, gone, "x")
    names = [name for name in configs if name not in gone]
    assert list(yaml.load(found.text)["mig-configs"]) == [*names, "tessera-new"]
    if names:
        back = yaml.load(edited(found.text, {}, ["tessera-new"], "x").text)
        assert back["mig-configs"] == {name: configs[name] for name in names}


@pytest.mark.parametrize("text", ["", "[]", "version: v1", "mig-configs: []", "a: b: c"])
def test_what_is_no_such_file(text):
    """A text that is no such file is refused, and nothing is written over it."""
    with pytest.raises(InvalidInput):
        edited(text, {"tessera-new": THREES}, [], "x")
