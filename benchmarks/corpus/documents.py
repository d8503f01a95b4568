"""Objects as JSON."""

import json
from typing import Any

Document = dict[str, Any]


def encoded(document: Document) -> bytes:
    """An object as an API server sends it: compact."""
    return json.dumps(document, separators=(",", ":")).encode()
