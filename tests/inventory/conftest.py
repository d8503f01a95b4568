"""What tests of the inventory share."""

from tests.kube.conftest import pytest_pyfunc_call, soon  # noqa: F401 # a hook: tests may be coroutines
