"""Objects in files, as `kubectl get -o yaml` or `-o json` writes them, in place of an API server.

Everything that reads such files reads them here: the webhook's `--from`, `tessera admit`, the inventory.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tessera.core.errors import InvalidInput, of_system
from tessera.kube.errors import NOT_JSON
from tessera.protocol import yaml
from tessera.protocol.kubernetes.workloads import items

_SUFFIXES: Final = (".json", ".yaml", ".yml")


class FileObject(NamedTuple):
    where: str
    kind: str
    raw: bytes  # as JSON


class _Outermost(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_outermost: Final = msgspec.json.Decoder(_Outermost).decode


def read_file(path: str) -> bytes:
    """A file's bytes; `-` is standard input."""
    if path == "-":
        return sys.stdin.buffer.read()
    if not path:  # a variable of the shell that is not set; as a path it would be the current folder
        raise InvalidInput("the name of a file is empty")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {of_system(error)}") from error


def read_text_file(path: str) -> str:
    """A file's text, without the mark that some editors put first."""
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{called(path)}: not UTF-8 text (byte {error.start})") from error


def called(*paths: str) -> str:
    """Paths as messages name them."""
    return ", ".join("standard input" if path == "-" else path for path in paths)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Errors about what is in a file begin with its name."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def documents_in(file: str, *, none_of_a_list: bool = False) -> list[dict[str, Any]]:
    """The objects in a file as documents, those of Lists taken out.

    No objects are what a kubectl that failed leaves behind; `none_of_a_list`: a List without any is an answer too.
    """
    documents = yaml.load_all(read_file(file), called(file))
    with naming(called(file)):
        found = items(documents)
        if not (found or (documents and none_of_a_list)):
            raise InvalidInput("no objects")
        return found


def objects_in(paths: Iterable[str]) -> Iterator[FileObject]:
    """Every object in some files; of a folder all files that can hold any, as `kubectl cluster-info dump` writes them."""
    for file in files_in(paths):
        yield from objects_in_text(read_file(file), called(file))


def files_in(paths: Iterable[str]) -> Iterator[str]:
    """The files; in place of a folder, those in it and below that can hold objects."""
    for path in paths:
        if path in ("-", "") or not os.path.isdir(path):  # noqa: PTH112 # Path.is_dir raises where a name is too long
            yield path
            continue
        files = [str(file) for file in sorted(Path(path).rglob("*")) if file.suffix in _SUFFIXES]
        if not files:
            raise InvalidInput(f"{path}: no files that end in {', '.join(_SUFFIXES)}")
        yield from files


def objects_in_text(text: bytes, where: str) -> Iterator[FileObject]:
    """Every object in a text. Of JSON only the outermost layer is decoded, which is much faster."""
    try:
        whole = _outermost(text)
        items = [(raw, _outermost(raw).kind) for raw in whole.items or ()]
    except NOT_JSON:
        yield from objects_in_documents(yaml.load_all(text, where), where)
        return
    if not whole.kind.endswith("List"):
        yield FileObject(where, whole.kind, text)
        return
    for raw, kind in items:
        # a typed list leaves its items' kind out
        yield FileObject(where, kind or whole.kind.removesuffix("List"), bytes(raw))


def objects_in_documents(documents: Iterable[object], where: str) -> Iterator[FileObject]:
    """Every object in documents that are parsed already."""
    with naming(where):
        found = items(documents)
    for one in found:
        yield FileObject(where, str(one.get("kind") or ""), msgspec.json.encode(one))
