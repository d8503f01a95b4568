"""The cluster as files describe it: `--nodes FILE` in place of an API server, followed for changes.

Reading and parsing happen in a thread; a broken file changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace, Node
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.files import WatchedFiles
from tessera.kube.watch.view import Keep, replace_namespaces
from tessera.protocol import yaml
from tessera.protocol.kubernetes import objects

_log: Final = logging.getLogger("tessera.kube")
_INTERVAL: Final = 2.0  # seconds between two looks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Described:
    """What files say there is."""

    nodes: tuple[Node, ...]
    namespaces: tuple[Namespace, ...]


class FileView:
    """Nodes and namespaces from files; the last good ones when a file is broken."""

    def __init__(
        self, files: Sequence[Path], *, keep: Keep | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Read the files for the first time; here a broken one is the caller's (`InvalidInput`)."""
        self.offers = Offers()
        self.reloads = 0
        self.failures = 0
        self.last_error = ""  # empty while what is in use is what is in the files
        self._files = WatchedFiles(*files)
        self._keep = keep
        self._clock = clock
        self._files.changed()
        self._use(self._read())

    async def run(self, interval: float = _INTERVAL) -> NoReturn:
        """Follow the files until cancelled."""
        while True:
            await self._clock.sleep(interval)
            await self.check()

    async def check(self) -> None:
        """Look once, and use what is new and good."""
        if not self._files.changed():
            return
        try:
            described = await asyncio.to_thread(self._read)
        except InvalidInput as error:
            self.failures += 1
            self.last_error = str(error)
            _log.error("%s; what was read before stays in use", error)  # a person's mistake
            return
        self._use(described)
        self.reloads += 1
        self.last_error = ""
        _log.info("%d nodes read again", len(described.nodes))

    def missing(self) -> str | None:
        """Nothing, ever: there is a view from the beginning."""
        return None

    def _read(self) -> Described:
        parts = [read_cluster_file(file, self._keep) for file in self._files.paths]
        return Described(
            tuple(node for part in parts for node in part.nodes),
            tuple(namespace for part in parts for namespace in part.namespaces),
        )

    def _use(self, described: Described) -> None:
        self.offers.replace(described.nodes)
        replace_namespaces(self.offers, described.namespaces)


def read_cluster_file(file: Path, keep: Keep | None = None) -> Described:
    """The nodes and namespaces in a file, as `kubectl get nodes,namespaces -o yaml` writes it."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from error
    return parse_cluster(content, str(file), keep)


def parse_cluster(content: bytes, source: str, keep: Keep | None = None) -> Described:
    """The nodes and namespaces in a text of YAML or JSON; `source` names it in errors."""
    documents = yaml.load_all(content, source)
    try:
        return _described(objects.items(documents), keep)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from error


def _described(found: Iterable[dict[str, Any]], keep: Keep | None) -> Described:
    nodes: list[Node] = []
    namespaces: list[Namespace] = []
    for one in found:
        match one.get("kind"):
            case "Node":
                nodes.append(objects.node_of(_decoded(objects.decode_node, one), keep))
            case "Namespace":
                namespaces.append(objects.namespace_of(_decoded(objects.decode_namespace, one)))
            case kind:
                raise InvalidInput(f"kind {kind or '(none)'} is neither a Node nor a Namespace")
    return Described(tuple(nodes), tuple(namespaces))


def _decoded(decode: Callable[[bytes], T], one: dict[str, Any]) -> T:
    try:
        return decode(msgspec.json.encode(one))
    except InvalidInput as error:
        metadata = one.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        raise InvalidInput(f"{one['kind']} {name}: {error}") from error
