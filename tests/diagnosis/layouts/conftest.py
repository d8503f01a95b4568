"""What these tests share."""

from tests.kube.conftest import pytest_pyfunc_call  # noqa: F401 # a hook: tests may be coroutines
