"""What a cluster is made of: every program, where it comes from, and its version, in one table."""

import os
import re
import sys
from dataclasses import dataclass

# The release that the tests run on; another one can be tried without an edit (it is built beside the first).
KUBERNETES = os.environ.get("TESSERA_E2E_KUBERNETES", "v1.36.3")
_ETCD = "v3.6.16"
_CONTAINERD = "v2.3.7"
_HELM = "v4.3.1"
_PROMETHEUS = "v0.315.0"  # Prometheus 3.15.0: its Go module counts apart

if not re.fullmatch(r"v1\.\d+\.\d+", KUBERNETES):
    sys.exit(f"TESSERA_E2E_KUBERNETES={KUBERNETES}: a release is meant, such as v1.36.3")
_MAJOR, _MINOR, _PATCH = KUBERNETES.removeprefix("v").split(".", 2)
_STAMP = " ".join(
    f"-X k8s.io/{package}.{variable}={value}"
    for package in ("component-base/version", "client-go/pkg/version")
    for variable, value in (("gitVersion", KUBERNETES), ("gitMajor", _MAJOR), ("gitMinor", _MINOR))
)


@dataclass(frozen=True, slots=True)
class GoModule:
    """A Go module and the programs built from it: program name → package."""

    name: str
    path: str
    version: str
    programs: dict[str, str]
    ldflags: str = "-s -w"  # no symbol tables: half the size
    tags: str = ""
    #: What the module asks for at v0.0.0 because it lives in the same repository, published under this version.
    staging_version: str = ""
    #: A module that it asks for and that Go's checksum database does not have: taken on its proxy's word.
    unlisted: str = ""
    #: Has C in it, which gcc compiles.
    cgo: bool = False


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A Debian package and the programs by which one sees that it, or something as good, is installed."""

    name: str
    provides: tuple[str, ...]


_KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")

GO_MODULES = (
    GoModule(
        name="kubernetes",
        path="k8s.io/kubernetes",
        version=KUBERNETES,
        programs={program: f"k8s.io/kubernetes/cmd/{program}" for program in _KUBERNETES_PROGRAMS},
        ldflags=f"-s -w {_STAMP}",
        staging_version=f"v0.{_MINOR}.{_PATCH}",
    ),
    GoModule(
        name="etcd",
        path="go.etcd.io/etcd/server/v3",
        version=_ETCD,
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
    ),
    GoModule(
        name="containerd",
        path="github.com/containerd/containerd/v2",
        version=_CONTAINERD,
        programs={
            program: f"github.com/containerd/containerd/v2/cmd/{program}" for program in _CONTAINERD_PROGRAMS
        },
        ldflags=f"-s -w -X github.com/containerd/containerd/v2/version.Version={_CONTAINERD}",
    ),
    GoModule(
        name="helm",
        path="helm.sh/helm/v4",
        version=_HELM,
        programs={"helm": "helm.sh/helm/v4/cmd/helm"},
        ldflags=f"-s -w -X helm.sh/helm/v4/internal/version.version={_HELM}",
    ),
    GoModule(
        name="prometheus",
        path="github.com/prometheus/prometheus",
        version=_PROMETHEUS,
        programs={
            program: f"github.com/prometheus/prometheus/cmd/{program}"
            for program in ("prometheus", "promtool")
        },
        ldflags=f"-s -w -X github.com/prometheus/common/version.Version=3.{_PROMETHEUS.removeprefix('v0.3')}",
        tags="remove_all_sd,enable_kubernetes_sd",  # no cloud's service discovery: half the build
    ),
    GoModule(
        name="kube-state-metrics",
        path="k8s.io/kube-state-metrics/v2",
        version="v2.13.0",
        programs={"kube-state-metrics": "k8s.io/kube-state-metrics/v2"},
    ),
    GoModule(
        name="dra-example-driver",
        path="sigs.k8s.io/dra-example-driver",
        version="v0.4.0",
        programs={
            "dra-example-kubeletplugin": "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
        },
    ),
    GoModule(
        name="kueue",
        path="sigs.k8s.io/kueue",
        version="v0.19.0",
        programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        unlisted="sigs.k8s.io/scheduler-library",
    ),
    *(
        GoModule(
            name=path.rpartition("/")[2],
            path=path,
            version=version,
            programs={program: f"{path}/cmd/{program}" for program in names},
            ldflags="-s -w -extldflags=-Wl,-z,lazy",  # NVML's functions are looked up when they are called
            cgo=True,
        )
        for path, version, names in (
            ("github.com/NVIDIA/mig-parted", "v0.13.1", ("nvidia-mig-parted", "nvidia-mig-manager")),
            (
                "github.com/NVIDIA/k8s-device-plugin",
                "v0.19.3",
                ("nvidia-device-plugin", "gpu-feature-discovery"),
            ),
        )
    ),
)

#: Always there; a cluster without a node needs only the first five.
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE = ("kubelet", *_CONTAINERD_PROGRAMS)
#: Built when asked for: `build --with helm,promtool`.
OPTIONAL = ("helm", "prometheus", "promtool", "kube-state-metrics", "dra-example-kubeletplugin", "kueue")
#: NVIDIA's, in the order in which tests need them: built in the background while other tests run.
NVIDIA = ("nvidia-mig-parted", "nvidia-mig-manager", "nvidia-device-plugin", "gpu-feature-discovery")

#: What a node needs from the distribution. bookworm's versions (runc 1.1.5, plugins 1.1.1) are new enough;
#: its etcd (3.4) and containerd (1.6) are not, hence the modules above.
DEBIAN_PACKAGES = (
    DebianPackage("runc", ("runc",)),
    DebianPackage("busybox-static", ("/bin/busybox",)),
    DebianPackage("containernetworking-plugins", ("/usr/lib/cni/bridge", "/usr/lib/cni/host-local")),
    DebianPackage("iproute2", ("ip",)),
    DebianPackage("util-linux", ("nsenter", "setpriv", "unshare")),
)
#: What NVIDIA's mig-manager needs: it wants to talk to systemd, and starts no service as long as it is not told to.
NVIDIA_PACKAGES = (DebianPackage("dbus", ("dbus-daemon",)),)


def module_of(program: str) -> GoModule:
    """The module that a program is built from."""
    for module in GO_MODULES:
        if program in module.programs:
            return module
    known = ", ".join(sorted(name for module in GO_MODULES for name in module.programs))
    raise LookupError(f"{program}: no such program; there are {known}")
