"""YAML as Kubernetes reads it."""

from decimal import Decimal

import pytest

from tessera.protocol.yaml import InvalidYaml, dump, load, load_all


def test_only_json_types():
    """Dates stay texts, sexagesimals are no numbers, and every key is a text."""
    text = "a: 1\nc: 2020-01-01\nd: 1:30\ne: on\non: x\n1: y\nf: 0x10\nh: 010\ni: ~\nj:\n"
    assert load(text) == {
        "a": 1, "c": "2020-01-01", "d": "1:30", "e": True, "on": "x", "1": "y", "f": 16, "h": 8, "i": None, "j": None,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["a: 0.29", '{"a": 0.29}'])
def test_exact_numbers(text):
    """A number keeps its decimal digits when exactness is asked for."""
    assert load(text, exact=True) == {"a": Decimal("0.29")}
    assert load(text) == {"a": 0.29}


def test_documents():
    """Empty documents are left out."""
    assert load_all("---\na: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert load("") is None
    with pytest.raises(InvalidYaml, match=r"^f: 2 documents, expected one$"):
        load("a: 1\n---\nb: 2\n", "f")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\na: 2", 'f.yaml: line 2, column 1: "a" appears twice'),
        ("a: .nan", "f.yaml: line 1, column 4: .nan is not a finite number"),
        ("a: 1e9999999999999999999", "f.yaml: line 1, column 4: 1e9999999999999999999 is out of range"),
        ('{"a": 1e9999999999999999999}', "f.yaml: line 1, column 7: 1e9999999999999999999 is out of range"),
        ("a: 1e-9999999999999999999", "f.yaml: line 1, column 4: 1e-9999999999999999999 is out of range"),
        ("a: " + "9" * 5000, f"f.yaml: line 1, column 4: {'9' * 60}… is not a whole number of at most 4300"),
        ("a: 0x_", "f.yaml: line 1, column 4: 0x_ is not a whole number"),
        ("a: [", "f.yaml: line 2, column 1: did not find expected node content"),
        ("a: !!python/object:os.system x", "f.yaml: line 1, column 4: could not determine a constructor"),
        ("a: !!binary aGk=", "f.yaml: line 1, column 4: could not determine a constructor"),
        ("[" * 100_000, "f.yaml: nested more than 100 levels deep"),
        ("- " * 3000, "f.yaml: nested more than 100 levels deep"),
        ("a: &x [*x]", "f.yaml: line 1, column 4: found unconstructable recursive node"),
        (b"\xff\xfe", "f.yaml: not UTF-8 text"),
        ("\x00", "f.yaml: not YAML: unacceptable character"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_bad_yaml(text, complaint, exact):
    """What is no YAML, or no JSON, is refused in one sentence that says where."""
    with pytest.raises(InvalidYaml) as caught:
        load_all(text, "f.yaml", exact=exact)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', b'{"b": [{"a": 1, "c": 3, "a": 1}]}'])
@pytest.mark.parametrize("exact", [False, True])
def test_a_key_twice_in_json(text, exact):
    """A key that stands twice is refused in JSON too, where one document is read; objects of a cluster are read as kubectl reads them."""
    with pytest.raises(InvalidYaml, match=r'^f: "a" appears twice$'):
        load(text, "f", exact=exact)
    assert load_all('{"a": 1, "a": 2}') == [{"a": 2}]
    assert load('{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}') == {"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}


@pytest.mark.parametrize("text", ["a: -1e400", '{"a": -1e400}'])
def test_more_than_a_float_holds(text):
    """A number that would become infinite is refused; it is a number where digits are kept."""
    with pytest.raises(InvalidYaml, match=r"^f: line 1, column \d: -1e400 is out of range$"):
        load(text, "f")
    assert load(text, exact=True) == {"a": Decimal("-1e400")}


def test_alias_bomb():
    """Aliases are followed, but not into a document that fills the memory."""
    assert load("a: &x [1]\nb: *x\n") == {"a": [1], "b": [1]}
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
    )
    with pytest.raises(InvalidYaml, match="grows too large by its aliases"):
        load(bomb)


def test_dump():
    """What is written is read again as it was, in the order it had."""
    document = {"b": ["1", 1, 0.5, None, True], "a": {"x": "yes", "y": "2020-01-01", "z": "über"}}
    assert load(dump(document)) == document
    assert list(load(dump(document))) == ["b", "a"]
