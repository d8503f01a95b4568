"""Objects as JSON."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def encoded(document: Document) -> bytes:
    """An object as an API server sends it: compact."""
    return json.dumps(document, separators=(",", ":")).encode()


def write_list(file: Path, objects: Iterable[bytes]) -> None:
    """Write objects as one List, as `kubectl get -o json` does."""
    file.write_bytes(b'{"apiVersion":"v1","kind":"List","items":[' + b",".join(objects) + b"]}")
