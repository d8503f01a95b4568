"""Objects in files, as `kubectl get -o yaml` or `-o json` writes them, in place of an API server.

Everything that reads such files reads them here: the webhook's `--nodes`, `tessera admit`, the inventory.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from tessera.core.dra.slices import DeviceClass
from tessera.core.errors import InvalidInput, of_system
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.quota import Quota
from tessera.kube.errors import NOT_JSON
from tessera.protocol import yaml
from tessera.protocol.dra.objects import read_class
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.dra import SliceIn, decode_slice
from tessera.protocol.kubernetes.nodes import decode_node, decode_quota, namespace_of, node_of, quota_of
from tessera.protocol.kubernetes.workloads import items, title_of

if TYPE_CHECKING:
    from tessera.core.admission.view.pods import ViewedPod

# kinds of objects that decisions read
_OFFERING: Final = (
    "Node",
    "Namespace",
    "ResourceQuota",
    "DeviceClass",
    "ResourceSlice",
    "Lease",
    "ConfigMap",
    "Pod",
)
_SUFFIXES: Final = (".json", ".yaml", ".yml")

T = TypeVar("T")


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


@dataclass(slots=True)
class ClusterObjects:
    """What a cluster has, as files describe it."""

    nodes: list[Node] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    quotas: list[Quota] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    slices: list[SliceIn] = field(default_factory=list)  # the classes determine what is kept of them
    leases: list[bytes] = field(default_factory=list)  # not decoded: one of them may be the controller's
    config_maps: list[bytes] = field(default_factory=list)  # not decoded: one of them may be the webhook's
    pods: list[FileObject] = field(default_factory=list)  # not decoded: read where it matters what is free


def cluster_objects(
    found: Iterable[FileObject], keep: Callable[[str], bool] | None = None, namespace: str = "default"
) -> ClusterObjects:
    """Nodes (with the resources to keep), namespaces, quotas, what DRA has, Leases, ConfigMaps and pods; any other kind is refused.

    `namespace` is that of quotas that name none.
    """
    have = ClusterObjects()
    for one in found:
        with naming(one.where):
            match one.kind:
                case "Node":
                    have.nodes.append(node_of(_decoded(decode_node, one), keep))
                case "Namespace":
                    have.namespaces.append(namespace_of(_decoded(objects.decode_any, one)))
                case "ResourceQuota":
                    have.quotas.append(quota_of(_decoded(decode_quota, one), namespace))
                case "DeviceClass":
                    have.classes.append(_decoded(read_class, one))
                case "ResourceSlice":
                    have.slices.append(_decoded(decode_slice, one))
                case "Lease":
                    have.leases.append(one.raw)
                case "ConfigMap":
                    have.config_maps.append(one.raw)
                case "Pod":
                    have.pods.append(one)
                case kind:
                    raise InvalidInput(
                        f"kind {kind or '(none)'} is no {', '.join(_OFFERING[:-1])} or {_OFFERING[-1]}"
                    )
    return have


def viewed_pods(found: Iterable[FileObject]) -> Iterator["tuple[str, ViewedPod]"]:
    """What pods take of their nodes, and which wait; pods that name no namespace are in `default`."""
    from tessera.protocol.admission.viewed_pod import decode_viewed_pod, viewed_pod  # by few

    for one in found:
        with naming(one.where):
            key, pod = viewed_pod(_decoded(decode_viewed_pod, one), one.raw)
            if pod is not None:
                yield ("default" + key if key.startswith("/") else key), pod


def offering(found: Iterable[FileObject]) -> ClusterObjects:
    """The same of objects among which there are others, such as Deployments: these are passed over."""
    return cluster_objects(one for one in found if one.kind in _OFFERING)


def _decoded(decode: Callable[[bytes], T], one: FileObject) -> T:
    try:
        return decode(one.raw)
    except objects.InvalidObject as error:
        title = one.kind
        with suppress(*NOT_JSON):  # else not even its name can be read
            title = title_of(msgspec.json.decode(one.raw), one.kind)
        raise InvalidInput(f"{title}: {error}") from error
