"""CONTRIBUTING is a true map: it lists every folder, its walks name files and functions that exist, and rooms and modules stay small."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tessera"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MOST_LINES_OF_A_ROOM = 2500  # without its sub-rooms: as much as one person can keep in mind
MOST_LINES_OF_A_MODULE = 400

LISTING = CONTRIBUTING.partition("```\nsrc/tessera/\n")[2].partition("\ntests/")[0]
WALKS = re.findall(r"^## (One .*?), file by file\n(.*?)(?=^## )", CONTRIBUTING, re.MULTILINE | re.DOTALL)
STEPS = [
    pytest.param(step, id=f"{title}: {step[:30]}")
    for title, text in WALKS
    for step in re.split(r"\n(?=\d+\. )|\n\n", text.strip())
]


def listed() -> set[str]:
    """The paths in the listing: folders by their slash, modules without; each line's indentation says what it is in."""
    found, inside = set(), [""]
    for line in LISTING.splitlines():
        entry = re.match(r"((?:  )+)([\w/]+)  ", line)
        if entry is None:
            continue  # the line before goes on
        depth = len(entry[1]) // 2
        path = inside[depth - 1] + entry[2]
        found.add(path)
        inside[depth:] = [path]
    return found


def test_every_folder_is_listed():
    """Every package of the source is in CONTRIBUTING's listing, and everything listed exists."""
    folders = {f"{file.parent.relative_to(SOURCE)}/" for file in SOURCE.rglob("__init__.py")} - {"./"}
    paths = listed()
    missing = sorted(folders - paths)
    assert not missing, (
        f'add these folders to the listing in CONTRIBUTING.md, "Where a change goes": {missing}'
    )
    gone = sorted(
        path
        for path in paths
        if path not in folders and not (path[-1] != "/" and (SOURCE / f"{path}.py").is_file())
    )
    assert not gone, f"strike or correct these lines in the listing in CONTRIBUTING.md: {gone}"


def test_essays_name_what_exists():
    """What a room's essay names in backticks as a module or a room is one."""
    known = {path.stem for path in SOURCE.rglob("*") if path.suffix == ".py" or path.is_dir()}
    commands = {"tessera", "why"}
    for file in SOURCE.rglob("__init__.py"):
        essay = ast.get_docstring(ast.parse(file.read_text())) or ""
        gone = {*re.findall(r"`([a-z_]+)/?`", essay)} - known - commands
        assert not gone, f"{file.relative_to(ROOT)} names {gone}, which do not exist"


def definitions(file: Path) -> set[str]:
    """The functions, classes, methods (`Class.method` and `method`) and constants of a module."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.update((node.name, prefix + node.name))
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{node.name}.")
            elif isinstance(node, ast.Assign):
                found.update(one.id for one in node.targets if isinstance(one, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)

    walk(ast.parse(file.read_text()).body, "")
    return found


@pytest.mark.parametrize("step", STEPS)
def test_walks(step):
    """Every file that a walk's step names exists, and every function or class beside it is defined in one of them."""
    told = "CONTRIBUTING.md names it in a walk; what moved or was renamed is to be moved or renamed there"
    files, names, folder = [], [], SOURCE
    for word in re.findall(r"`([^`]+)`", step):
        if re.fullmatch(r"[\w/]+\.py", word):
            beside = folder != SOURCE and (folder / word).is_file()
            path = folder / word if beside else SOURCE / word
            assert path.is_file(), f"no file {word} (in {folder.relative_to(ROOT)}): {told}"
            files.append(path)
            folder = folder if beside else path.parent
        elif word.endswith("/"):
            folder = SOURCE / word
            assert folder.is_dir(), f"no folder {word}: {told}"
        elif re.fullmatch(r"[A-Za-z_][\w.]*", word):
            names.append(word)
    known = {name for file in files for name in definitions(file)}
    for name in names:
        assert name in known, f"{name} is not defined in {[file.name for file in files]}: {told}"


def test_there_are_walks():
    """An admission, an allocation, both kinds of claims, a layout change and an eviction are walked, in steps."""
    assert [title for title, _ in WALKS] == [
        "One admission",
        "One allocation",
        "One claim (DRA)",
        "One pod that becomes a claim",
        "One layout change",
        "One pod that waits for too long",
    ]
    assert all(len(re.findall(r"^\d+\. ", text, re.MULTILINE)) >= 6 for _, text in WALKS)


def count_lines(file: Path) -> int:
    """The lines of a module; generated code counts as none."""
    return 0 if file.stem.endswith("_pb2") else len(file.read_text().splitlines())


@pytest.mark.parametrize(
    "room",
    sorted({file.parent for file in SOURCE.rglob("__init__.py")}),
    ids=lambda room: str(room.relative_to(SOURCE)),
)
def test_rooms_are_small(room):
    """One person can keep a room in mind, without its sub-rooms, and a module has one subject."""
    lines = {file.name: count_lines(file) for file in room.glob("*.py")}
    total = sum(lines.values())
    assert total <= MOST_LINES_OF_A_ROOM, f"{total} lines: which subjects live in there?"
    large = {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_MODULE}
    assert not large, f"more than {MOST_LINES_OF_A_MODULE} lines: {large}"
