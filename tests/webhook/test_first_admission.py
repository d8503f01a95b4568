"""How many modules a pod passes at its first admission: who follows it reads no more than these."""

import ast
import sys
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Protocol

import msgspec

from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics
from tests.build import MIG, node, offers, pod_document, policy, review

RULES = """
injection:
  resourceMap: {V100: {nvidia.com/mig-1g.10gb: {resourceList: [{name: cpu, coefficient: 4}]}}}
"""
MOST = 18


def can_change(one: type) -> bool:
    """Whether a class is more than a value: neither frozen, nor a tuple, an enumeration, an error or a protocol."""
    if issubclass(one, (tuple, Enum, BaseException)) or Protocol in one.__mro__:
        return False
    if issubclass(one, msgspec.Struct):
        return not one.__struct_config__.frozen
    parameters = vars(one).get("__dataclass_params__")
    # `core.values.value` is frozen to the type checker, and has a hash when it runs
    return parameters is None or not (parameters.frozen or parameters.unsafe_hash)


def classes(name: str) -> list[type]:
    """The classes that a module defines."""
    found = vars(import_module(name)).values()
    return [one for one in found if isinstance(one, type) and one.__module__ == name]


@cache
def is_arithmetic(name: str) -> bool:
    """Whether a module of the core is values and arithmetic on them: nothing in it can change, and it imports only such modules.

    Whatever is in `core.admission` is not: it decides.
    """
    if not name.startswith("tessera.core.") or name.startswith("tessera.core.admission"):
        return False
    if any(can_change(one) for one in classes(name)):
        return False
    tree = ast.parse(Path(import_module(name).__file__ or "").read_text())
    inner = set()
    for one in ast.walk(tree):
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("tessera."):
            package = import_module(str(one.module))
            inner |= {
                f"{one.module}.{alias.name}"
                if isinstance(vars(package)[alias.name], ModuleType)
                else str(one.module)
                for alias in one.names
            }
    return all(map(is_arithmetic, inner))


def is_of_values(name: str, functions: set[str]) -> bool:
    """Whether only values had a part: the module is arithmetic on them, or nothing but methods of frozen classes was entered."""
    frozen = {one.__name__ for one in classes(name) if not can_change(one)}
    generated = "__create_fn__"  # by `dataclass`
    return is_arithmetic(name) or all(one.split(".")[0] in {generated, *frozen} for one in functions)


def test_the_first_admission_passes_few_modules(tmp_path):
    """A template's first pod, with fallback and injection: at most 18 modules that are more than values have a part in it."""
    entered: dict[str, set[str]] = {}

    def called(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("tessera."):
            entered.setdefault(name, set()).add(frame.f_code.co_qualname)

    document = pod_document(
        {"limits": {MIG + "2g.20gb": "1"}}, annotations={"task.bkbcs.tencent.com/gpu-type": "V100"}
    )
    with (tmp_path / "log").open("wb") as file:
        admission = Admission(offers(node("small", **{"1g.10gb": 28})), policy(RULES))
        endpoint = Endpoint(admission, lambda: None, Metrics("1"), Log("json", "info", file.fileno()))
        body = review(document)
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            response = endpoint.handle(body)
        finally:
            sys.setprofile(before)
    assert b"JSONPatch" in response.body
    more = sorted(name for name, functions in entered.items() if not is_of_values(name, functions))
    assert {
        "tessera.webhook.endpoint",
        "tessera.core.admission.decision",
        "tessera.core.admission.injection",
    } <= set(more)
    assert len(more) <= MOST, more
    assert len(entered) - len(more) >= 10, "values, as pods and quantities are"
