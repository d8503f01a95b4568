"""The programs that we measure beside say what we say: `.venv/bin/pytest benchmarks`."""

import shutil

import pytest

from benchmarks import corpus, python_webhooks
from benchmarks.answers import check_answers, check_programs
from benchmarks.processes import build_programs
from benchmarks.stage import QUICK, Stage


@pytest.mark.skipif(shutil.which("go") is None, reason="the peers are written in Go")
@pytest.mark.timeout(1200)  # the first build compiles client-go
def test_same_answers() -> None:
    """The Go programs decide about every template, in both sizes, as Tessera does, patch by patch and word by word."""
    build_programs()
    check_programs(Stage(QUICK))


@pytest.mark.parametrize("size", corpus.SIZES)
def test_same_answers_in_python(size: str) -> None:
    """So does the handler of the Python webhooks."""
    answers = map(python_webhooks.answer, corpus.reviews(size))
    check_answers("Python", answers, size, "own annotation")
