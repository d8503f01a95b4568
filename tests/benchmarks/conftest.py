"""Coroutine tests, as in the kube package's tests."""

from tests.kube.conftest import pytest_pyfunc_call  # noqa: F401 # a hook
