"""mig-manager's file with configurations added and removed, the rest of its text as it stands.

The text is edited line by line, so that comments stay. What comes out is read again: where it does not mean what it should (a document
in flow style, anchors), the whole document is written again, which loses its comments.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml as pyyaml

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import LayoutEntry
from tessera.protocol import yaml
from tessera.protocol.mig.documents import MOST_BYTES
from tessera.protocol.mig.entries import write_parted
from tessera.protocol.mig.operator import CONFIG_KEY, DEFAULT_CONFIG, MigManagerConfig

_CONFIGS: Final = "mig-configs"
_OWN_CONFIG: Final = "tessera-mig-parted-config"  # what a copy of the operator's default ConfigMap is called


@dataclass(frozen=True, slots=True)
class Edited:
    text: str
    comments_lost: bool = False


def edited(
    text: str, add: Mapping[str, Sequence[LayoutEntry]], remove: Collection[str], source: str
) -> Edited:
    """The text with these configurations added, as mig-parted reads them, and those removed."""
    document = yaml.load(text, source)
    configs = document.get(_CONFIGS) if isinstance(document, dict) else None
    if not isinstance(configs, dict):
        raise InvalidInput(f"{source}: no map {_CONFIGS}")
    new = {name: [write_parted(entry) for entry in entries] for name, entries in add.items()}
    kept = {name: entries for name, entries in configs.items() if name not in remove and name not in new}
    wanted = {**document, _CONFIGS: kept | new}
    if not wanted[_CONFIGS]:
        raise InvalidInput(f"{source}: no configuration would be left")
    found = _edited(text, wanted, _by_line(text, new, {*remove, *new}), source)
    if len(found.text.encode()) > MOST_BYTES:
        raise InvalidInput(
            f"{source}: it would be longer than {MOST_BYTES // 1024} KiB with {', '.join(new)}, the most that is read"
        )
    return found


def _edited(text: str, wanted: Mapping[str, Any], by_line: str | None, source: str) -> Edited:
    try:
        if by_line is not None and yaml.load(by_line, source) == wanted:
            return Edited(by_line)
    except yaml.InvalidYaml:
        pass
    return Edited(yaml.dump(wanted), comments_lost="#" in text)


def entries_text(configs: Mapping[str, Sequence[LayoutEntry]]) -> str:
    """Configurations as they stand in the file, without indentation."""
    return yaml.dump({name: [write_parted(entry) for entry in entries] for name, entries in configs.items()})


def own_copy(manager: MigManagerConfig, new: Mapping[str, Sequence[LayoutEntry]]) -> list[str]:
    """What to type where the operator owns the ConfigMap: a copy with the new configurations, and the ClusterPolicy's patch."""
    name = _OWN_CONFIG if manager.name == DEFAULT_CONFIG else f"{manager.name}-tessera"
    text = edited(manager.text, new, (), str(manager)).text
    patch = f'{{"spec": {{"migManager": {{"config": {{"name": "{name}"}}}}}}}}'
    return [
        "kubectl apply -f - <<'END'",
        *yaml.dump({"apiVersion": "v1", "kind": "ConfigMap"}).splitlines(),
        *yaml.dump({"metadata": {"namespace": manager.namespace, "name": name}}).splitlines(),
        "data:",
        f"  {CONFIG_KEY}: |2",  # four columns: two of the key, and two more
        *(f"    {line}" if line else "" for line in text.splitlines()),
        "END",
        f"kubectl patch clusterpolicy {manager.policy} --type merge -p '{patch}'",
    ]


def _by_line(text: str, new: Mapping[str, Any], remove: Collection[str]) -> str | None:
    """The same, line by line; None where the document is not in block style."""
    root = pyyaml.compose(text, Loader=pyyaml.SafeLoader)
    configs = next((value for key, value in root.value if key.value == _CONFIGS), None)
    if root.flow_style or not isinstance(configs, pyyaml.MappingNode) or configs.flow_style:
        return None
    lines = text.split("\n")
    end = _last_line(configs) + 1
    indent = " " * configs.value[0][0].start_mark.column
    added = [indent + line for line in yaml.dump(new).splitlines()] if new else []
    gone = {
        number
        for key, value in configs.value
        if key.value in remove
        for number in range(key.start_mark.line, _last_line(value) + 1)
    }
    kept = [line for number, line in enumerate(lines[:end]) if number not in gone]
    return "\n".join([*kept, *added, *(lines[end:] or [""])])


def _last_line(node: pyyaml.Node) -> int:
    """The last line of what a node says; PyYAML counts the comments and blank lines behind it to the node itself."""
    if isinstance(node, pyyaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.line)
