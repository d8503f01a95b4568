"""A cluster that was there before, used in the tests that need no node of their own."""

import shutil
import subprocess
from pathlib import Path

from e2e.cluster.api import Api
from e2e.cluster.client import Client
from e2e.cluster.errors import ClusterError
from e2e.cluster.programs import program


class ExistingCluster(Client):
    """A cluster that was there before: used, never started or stopped."""

    def __init__(self, kubeconfig: Path) -> None:
        found = shutil.which("kubectl")
        kubectl = Path(found) if found else program("kubectl")
        # kubectl knows every way to log in; its proxy lends us that.
        self._proxy = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "--", kubectl, f"--kubeconfig={kubeconfig}", "proxy", "--port=0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._proxy.stdout is not None
        address = self._proxy.stdout.readline().rpartition(" ")[2].strip()
        if not address:
            self._proxy.communicate()
            raise ClusterError(f"`kubectl proxy` with {kubeconfig} does not start")
        cache = Path.home() / ".kube" / "cache"  # kubectl's own
        super().__init__(kubeconfig, kubectl, cache, Api(f"http://{address}", None))

    def close(self) -> None:
        """End the proxy."""
        self.api.close()
        self._proxy.terminate()
        self._proxy.communicate(timeout=10)
