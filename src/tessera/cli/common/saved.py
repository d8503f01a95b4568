"""Objects that somebody saved with kubectl: files, folders, standard input."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tessera.cli.common.terminal import called, read_file
from tessera.core.errors import InvalidInput
from tessera.protocol import yaml
from tessera.protocol.kubernetes import objects

_SUFFIXES: Final = (".json", ".yaml", ".yml")


class Saved(NamedTuple):
    """An object in a file."""

    where: str
    kind: str
    raw: bytes  # as JSON


class _Any(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_decode: Final = msgspec.json.Decoder(_Any).decode


def saved_objects(paths: Iterable[str]) -> Iterator[Saved]:
    """Every object in some files; of a folder all files that can hold any, as `kubectl cluster-info dump` writes them."""
    for path in paths:
        files = [path]
        if path != "-" and Path(path).is_dir():
            files = [str(file) for file in sorted(Path(path).rglob("*")) if file.suffix in _SUFFIXES]
            if not files:
                raise InvalidInput(f"{path}: no files that end in {', '.join(_SUFFIXES)}")
        for file in files:
            yield from _objects(file)


def named(paths: Iterable[str]) -> str:
    """Some paths as messages name them."""
    return ", ".join(map(called, paths))


def _objects(file: str) -> Iterator[Saved]:
    where, data = called(file), read_file(file)
    try:
        document = _decode(data)  # JSON, of which only the outermost layer is looked at
    except (msgspec.MsgspecError, RecursionError):
        yield from documents(yaml.load_all(data, where), where)
        return
    if not document.kind.endswith("List"):
        yield Saved(where, document.kind, data)
        return
    for number, raw in enumerate(document.items or ()):
        try:
            kind = _decode(raw).kind
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{where}: items[{number}]: {objects.complaint(error)}") from error
        yield Saved(where, kind or document.kind.removesuffix("List"), bytes(raw))


def documents(given: Iterable[object], where: str) -> Iterator[Saved]:
    """The objects in documents that were read already."""
    try:
        for one in objects.items(given):
            yield Saved(where, str(one.get("kind", "")), msgspec.json.encode(one))
    except objects.InvalidObject as error:
        raise InvalidInput(f"{where}: {error}") from error
