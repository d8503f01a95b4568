"""HiGHS, the solver behind the planner, through its C interface.

HiGHS computes in floating point. Amounts and weights are small whole numbers, `program` checks every answer in integers, and a
bound may be wrong by less than 0.00001 where goals differ by 1. Tests compare it with trying everything. One thread, one
seed, steps instead of a clock: the same version gives the same answer; another one may choose another among plans that are
as good. The image has the wheel's library alone, 12 MB: `highspy` itself wants numpy, 73 MB more, and 0.1 s to import.
Measured on 27 questions (100 to 10,000 cards of 2, 10 and 50 kinds), it took 0.01 to 0.25 s each and proved every plan best.
"""

import ctypes
import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tessera.core.planning.program import Found, Program, SolverFailed, Sum

_STEPS: Final = 500  # nodes of the search tree
_ROWWISE: Final = 2
_MINIMISE: Final = 1
_INTEGER: Final = 1
_OPTIMAL: Final = 7
_SOLUTION_LIMIT: Final = 16  # HiGHS reports this when it has used all its steps
# amounts are whole numbers below a million: what is nearer to one than this is it
_NEAR: Final = 1e-5
_Double = ctypes.c_double
_Int = ctypes.c_int32


@cache
def _library() -> Any:
    """The library in the wheel `highspy`, without its Python part, which would need numpy."""
    spec = find_spec("highspy")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    found = sorted(folder.glob("libhighs.*")) if folder else []
    if not found:
        raise SolverFailed("no solver: the library of highspy is not installed")
    library = ctypes.CDLL(str(found[0]))
    library.Highs_create.restype = ctypes.c_void_p
    library.Highs_destroy.argtypes = [ctypes.c_void_p]
    return library


def highs(program: Program, goal: Sum, start: Sequence[int], steps: int = _STEPS) -> Found:
    """Solve with HiGHS: one thread, one seed, no clock; bounded by steps of its search."""
    library = _library()
    model = ctypes.c_void_p(library.Highs_create())
    try:
        library.Highs_setBoolOptionValue(model, b"output_flag", 0)
        for name, number in (("threads", 1), ("random_seed", 0), ("mip_max_nodes", steps)):
            library.Highs_setIntOptionValue(model, name.encode(), number)
        library.Highs_setStringOptionValue(model, b"parallel", b"off")
        # every goal is a sum of whole numbers: an answer less than one from the bound is the best
        for name, value in (
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.999),
            ("mip_feasibility_tolerance", 1e-7),
        ):
            library.Highs_setDoubleOptionValue(model, name.encode(), _Double(value))
        _pass(library, model, program, goal)
        values = _doubles(start)
        library.Highs_setSolution(model, values, None, None, None)
        library.Highs_run(model)
        status = library.Highs_getModelStatus(model)
        if status not in (_OPTIMAL, _SOLUTION_LIMIT):
            raise SolverFailed(f"the solver ended with status {status}")
        library.Highs_getSolution(model, values, None, None, None)
        bound = _Double()
        library.Highs_getDoubleInfoValue(model, b"mip_dual_bound", ctypes.byref(bound))
    finally:
        library.Highs_destroy(model)
    found = tuple(round(value) for value in values)
    if not math.isfinite(bound.value):
        bound.value = sum(min(0, weight) * program.limits[amount] for amount, weight in goal.items())
    return Found(found, math.ceil(bound.value - _NEAR))


def _pass(library: Any, model: ctypes.c_void_p, program: Program, goal: Sum) -> None:
    columns, rows = len(program.limits), len(program.rows)
    starts: list[int] = []
    indices: list[int] = []
    weights: list[int] = []
    for row in program.rows:
        starts.append(len(indices))
        indices += row.weights.keys()
        weights += row.weights.values()
    status = library.Highs_passMip(
        model, columns, rows, len(indices), _ROWWISE, _MINIMISE, _Double(0),
        _doubles(goal.get(column, 0) for column in range(columns)),
        _doubles([0] * columns), _doubles(program.limits),
        _doubles([-math.inf] * rows), _doubles(row.most for row in program.rows),
        (_Int * rows)(*starts), (_Int * len(indices))(*indices), _doubles(weights),
        (_Int * columns)(*[_INTEGER] * columns),
    )  # fmt: skip
    if status < 0:
        raise SolverFailed(f"the solver refused the program with status {status}")


def _doubles(values: Iterable[float]) -> Any:
    listed = list(values)
    return (_Double * len(listed))(*listed)
