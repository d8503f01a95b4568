"""The programs of the table: found in `KUBEBUILDER_ASSETS` or in the cache, else built into the cache."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from e2e.cluster.errors import ClusterError, Unavailable
from e2e.cluster.versions import DEBIAN_PACKAGES, DebianPackage, GoModule, module_of

#: Where the distribution's programs are looked for; the PATH of a user who became root often lacks the second half.
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"

_PROGRESS_EVERY = 15.0  # seconds between two lines where there is no terminal


def cache_dir() -> Path:
    """Where built programs are kept: `TESSERA_E2E_CACHE`, else `tessera-e2e` in the user's cache folder."""
    if chosen := os.environ.get("TESSERA_E2E_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera-e2e"


def program(name: str) -> Path:
    """The program's path: from `KUBEBUILDER_ASSETS` if it is there, else from the cache, where it may have to be built."""
    return programs([name])[name]


def built(name: str) -> Path | None:
    """The program's path if it is there, without building anything."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    candidates = [Path(assets) / name] if assets else []
    return next((path for path in [*candidates, _cached(name)] if os.access(path, os.X_OK)), None)


def programs(names: Iterable[str]) -> dict[str, Path]:
    """The paths of several programs; those that are nowhere yet are built first."""
    names = list(names)
    if any(built(name) is None for name in names):
        with _locked(".lock"):  # another process may be building the very same
            for leftover in cache_dir().glob(".building-*"):  # of a build that was killed; we hold the lock
                shutil.rmtree(leftover, ignore_errors=True)
            _build_missing(names)
    return {name: built(name) or _cached(name) for name in names}


def install_debian_packages(
    packages: Iterable[DebianPackage] = DEBIAN_PACKAGES, *, what: str = "a node"
) -> None:
    """Install what a node (or something else) needs from the distribution, if anything is missing."""
    packages = list(packages)
    if _missing(packages):
        with _locked(".lock-packages"):  # several lanes of the tests may want the same
            _install(_missing(packages), what)


def _missing(packages: list[DebianPackage]) -> list[str]:
    return [package.name for package in packages if not all(map(shutil.which, package.provides))]


def _install(missing: list[str], what: str) -> None:
    if not missing:
        return
    if os.geteuid() != 0:
        raise Unavailable(
            f"{what} needs {', '.join(missing)}: run `apt-get install {' '.join(missing)}` as root"
        )
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{what} needs {', '.join(missing)}, and there is no apt-get to install them with")
    _say(f"Installing {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-remove", "--no-install-recommends", *missing]
    first = subprocess.run(install, env=environment, capture_output=True, check=False)
    if first.returncode == 0:
        return
    # The usual reason on a fresh machine: the package lists were never fetched.
    for command in (["apt-get", "update", "--quiet"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _cached(name: str) -> Path:
    module = module_of(name)
    recipe = json.dumps([module.path, module.version, module.ldflags, module.tags, module.staging_version])
    return (
        cache_dir()
        / f"{module.name}-{module.version}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"
        / name
    )


def _build_missing(names: list[str]) -> None:
    missing = [name for name in names if built(name) is None]
    modules = {module.name: module for module in map(module_of, missing)}.values()
    for position, module in enumerate(modules, start=1):
        wanted = [name for name in missing if name in module.programs]
        _build(
            module, wanted, f"[{position}/{len(modules)}] {module.name} {module.version}: {', '.join(wanted)}"
        )


def _build(module: GoModule, names: list[str], title: str) -> None:
    """Build some programs of one module. A program appears in the cache whole (by a rename) or not at all."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable(
            f"Go is needed to build {', '.join(names)}; install Go (1.21 or newer),"
            " or name a folder that has the programs in KUBEBUILDER_ASSETS"
        )
    if module.cgo and shutil.which("gcc") is None:
        raise Unavailable(f"gcc is needed to build {', '.join(names)}")
    target = _cached(names[0]).parent
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache_dir()) as folder:
        work = Path(folder)
        started = time.monotonic()
        _say(f"{title}: fetching")
        (work / "go.mod").write_text(_go_mod(go, module, work))
        command = [go, "build", "-v", "-mod=mod", "-trimpath", "-buildvcs=false"]
        command += ["-ldflags", module.ldflags, "-tags", module.tags, "-o", f"{work / 'out'}{os.sep}"]
        _run_with_progress([*command, *(module.programs[name] for name in names)], work, title, module)
        for name in names:
            # `go build` names the file after the package's last element that is not a version.
            built = work / "out" / name
            if not built.exists() and len(names) == 1:
                built = next((work / "out").iterdir())
            built.replace(target / name)
        _say(f"{title}: done in {time.monotonic() - started:.0f} s")


def _go_mod(go: str, module: GoModule, folder: Path) -> str:
    """A module of our own that requires the other, with its unpublished siblings replaced by published ones."""
    lines = ["module tessera.invalid/e2e", f"require {module.path} {module.version}"]
    (folder / "go.mod").write_text(lines[0] + "\n")
    downloaded = json.loads(
        _output([go, "mod", "download", "-json", f"{module.path}@{module.version}"], folder, module)
    )
    required = json.loads(_output([go, "mod", "edit", "-json", downloaded["GoMod"]], folder, module))
    lines.insert(1, f"go {required['Go']}")
    if module.staging_version:
        siblings = [entry["Path"] for entry in required["Require"] if entry["Version"] == "v0.0.0"]
        lines += [f"replace {path} => {path} {module.staging_version}" for path in siblings]
    return "\n".join(lines) + "\n"


def _go_environment(module: GoModule) -> dict[str, str]:
    # GOFLAGS and go.work files of the machine are not meant for these builds; the module and build caches are Go's own.
    own = {"CGO_ENABLED": str(int(module.cgo)), "GOFLAGS": "", "GOWORK": "off"}
    return {**os.environ, **own, **({"GONOSUMDB": module.unlisted} if module.unlisted else {})}


def _output(command: list[str], folder: Path, module: GoModule) -> str:
    done = subprocess.run(
        command, cwd=folder, env=_go_environment(module), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _run_with_progress(command: list[str], folder: Path, title: str, module: GoModule) -> None:
    """Run `go build -v`, which prints a line for each package that it compiles, and show how many there were."""
    lines: list[str] = []
    fetched = compiled = 0
    live = sys.stderr.isatty()
    next_report = time.monotonic() + (0 if live else _PROGRESS_EVERY)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_go_environment(module),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as build:
        assert build.stderr is not None
        try:
            for line in build.stderr:
                lines.append(line)
                if line.startswith("go: "):
                    fetched += line.startswith("go: downloading")
                else:
                    compiled += 1
                if time.monotonic() >= next_report:
                    _say(f"{title}: {fetched} modules fetched, {compiled} packages compiled", replace=live)
                    next_report = time.monotonic() + (0.2 if live else _PROGRESS_EVERY)
        except BaseException:
            build.send_signal(signal.SIGINT)  # go takes its compilers with it
            raise
    if live:
        sys.stderr.write("\r\033[K")
    if build.returncode:
        raise ClusterError(f"{title}: the build failed:\n{''.join(lines[-30:])}")


def _say(text: str, *, replace: bool = False) -> None:
    sys.stderr.write(f"\r\033[K{text}" if replace else f"{text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _locked(file: str) -> Iterator[None]:
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / file).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Waiting for another process: {lock.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
