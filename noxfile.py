"""All that continuous integration checks, as sessions to be called one by one.

`nox -l` lists them, `nox -s lint` runs one in an environment of its own. To run them in the activated environment that
holds nox and the package, as .ci/run does: `nox -s environment` once, then `nox --no-venv --no-install -s lint`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
JOBS = str(os.cpu_count() or 1)


def group(*names: str) -> tuple[str, ...]:
    """Return the requirements of some of the project's dependency groups."""
    return nox.project.dependency_groups(PROJECT, *names)


@nox.session(venv_backend="none", default=False)
def environment(session: nox.Session) -> None:
    """Install what all sessions need beside the package and its tests, where nox itself is installed."""
    needed = [*group(*PROJECT["dependency-groups"]), *EXTRAS["bench"], *EXTRAS["docs"]]
    session.run("python", "-m", "pip", "install", "-q", *needed)


@nox.session
def lint(session: nox.Session) -> None:
    """Check Python with ruff, and the layout of Python and C++."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("clang-format", "--dry-run", "--Werror", *sources(), log=False)


@nox.session(name="format", default=False)
def format_sources(session: nox.Session) -> None:
    """Lay out Python and C++ as `lint` wants them."""
    session.install(*group("lint"))
    session.run("ruff", "format", ".")
    session.run("clang-format", "-i", *sources(), log=False)


def sources() -> list[str]:
    """Return all files of C++."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cpp").rglob("*.[ch]pp"))


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy: the package and tools, the tests, the benchmarks."""
    # The package is read from its sources, and need not be built.
    others = [name for name in (*EXTRAS["test"], *EXTRAS["plot"], *EXTRAS["studies"]) if "depthgauge" not in name]
    session.install(*group("types"), *EXTRAS["bench"], *others)
    # One cache, so that the second and third run need not read the package and its libraries again.
    paths = {"MYPY_CACHE_DIR": str(ROOT / ".mypy_cache"), "MYPYPATH": str(ROOT / "python")}
    session.run("mypy", "--strict", "python/depthgauge", "tools", "examples", "noxfile.py", env=paths)
    for folder in ("tests", "benchmarks"):
        with session.chdir(folder):
            session.run("mypy", "--strict", ".", env=paths)


@nox.session
def stubs(session: nox.Session) -> None:
    """Compare the extension's stub with the extension."""
    session.install(*group("types"), ".")
    session.run("stubtest", "depthgauge._core", "--allowlist", "tools/stubtest_allowed.txt")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, with pytest's arguments after `--`."""
    session.install(*group("parallel"), ".[test]")
    session.run("pytest", *(session.posargs or ["-n", JOBS]))


@nox.session
def instruction_sets(session: nox.Session) -> None:
    """Run the tests on every instruction set of this CPU but the best, which `tests` takes; no slow ones."""
    session.install(*group("parallel"), ".[test]")
    others = (
        "import depthgauge as dg; config = dg.build_config();"
        "print(*(t for t in config['targets_supported'] if t != config['target']))"
    )
    for target in str(session.run("python", "-c", others, silent=True)).split():
        options = ("-q", "-m", "not slow", "-n", JOBS)
        session.run("pytest", *options, *session.posargs, env={"DEPTHGAUGE_TARGET": target})


@nox.session
def sanitizers(session: nox.Session) -> None:
    """Run the kernels' driver under the sanitizers of addresses, undefined behavior and threads."""
    session.install(*group("native"))
    # Python, which sanitizers would trip over, has no part in it.
    drivers = []
    for preset in ("address", "thread"):
        elsewhere = [] if platform.machine() == "x86_64" else ["-DDEPTHGAUGE_TARGETS=baseline"]
        session.run("cmake", "--preset", preset, *elsewhere, silent=True)
        session.run("cmake", "--build", "--preset", preset, "-j", JOBS)
        drivers.append([*fixed_addresses(), str(ROOT / "build" / preset / "depthgauge_driver")])
    # They have one thread for most of the time: side by side.
    options = {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", "TSAN_OPTIONS": "halt_on_error=1"}
    running = [subprocess.Popen(driver, env={**os.environ, **options}) for driver in drivers]
    if any([process.wait() for process in running]):
        session.error("a sanitizer found something")


def fixed_addresses() -> list[str]:
    """Return what to put before a command so that its addresses are not randomized.

    GCC's thread sanitizer cannot map its shadow memory where the kernel randomizes them widely.
    """
    command = ["setarch", platform.machine(), "-R"]
    if shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    return []


@nox.session
def weak_symbols(session: nox.Session) -> None:
    """Look for weak symbols in the kernels' objects, in the build folder given after `--` or in one made for it."""
    build = session.posargs
    if not build:
        session.install(*group("native"))
        session.run("cmake", "--preset", "release", silent=True)
        session.run("cmake", "--build", "--preset", "release", "-j", JOBS)
        build = ["build/release"]
    session.run("python", "tools/check_weak_symbols.py", *build)


@nox.session
def wheel(session: nox.Session) -> None:
    """Repair a wheel, given after `--` or built here, and try it with the oldest NumPy allowed and with the newest."""
    session.install(*group("wheel"))
    folder = ROOT / "build" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    given = session.posargs
    if not given:
        session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), ".")
        given = [str(*folder.glob("*.whl"))]
    session.run("auditwheel", "repair", "-w", str(folder / "repaired"), *given)
    (path,) = (folder / "repaired").glob("*.whl")
    check_size(session, path)

    oldest = PROJECT["project"]["dependencies"][0].replace(">=", "==")
    for name, numpy in ("oldest", oldest_wheel(session, oldest)), ("newest", "numpy"):
        session.run("python", "-m", "venv", str(folder / name))
        python = str(folder / name / "bin" / "python")
        session.run(python, "-m", "pip", "install", "-q", "--only-binary=:all:", str(path), numpy, external=True)
        session.run(python, "-I", "tools/smoke.py", external=True)
    shutil.copytree(folder / "repaired", ROOT / "dist", dirs_exist_ok=True)


def oldest_wheel(session: nox.Session, oldest: str) -> str:
    """Return the oldest NumPy allowed, or the first that has a wheel for this Python."""
    minor = str(session.run("python", "-c", "import sys; print(sys.version_info.minor)", silent=True)).strip()
    return {"13": "numpy==2.1.0", "14": "numpy==2.3.2"}.get(minor, oldest)


def check_size(session: nox.Session, path: Path) -> None:
    """Fail if the extension in a wheel has 4 MB or more."""
    with zipfile.ZipFile(path) as archive:
        (size,) = (part.file_size for part in archive.infolist() if re.search(r"/_core\..*so$", part.filename))
    session.log(f"the extension has {size} bytes")
    if size >= 4_000_000:
        session.error("the extension has 4 MB or more")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of the documentation in build/site; a warning is an error."""
    # The API pages are read from the sources; ruff lays out their signatures.
    session.install(*EXTRAS["docs"], *group("lint"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def examples(session: nox.Session) -> None:
    """Run the examples."""
    session.install(".[studies]")
    for example in sorted(Path("examples").glob("*.py")):
        session.run("python", "-W", "error", str(example))


@nox.session
def studies(session: nox.Session) -> None:
    """Run the rank studies, small."""
    session.install(".[studies]")
    session.run("depthgauge", "rank", "all", "--quick")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run the benchmarks of both backends."""
    session.install(".[test,bench]")
    options = ("--benchmark-only", "--benchmark-disable-gc", "--benchmark-columns=median")
    session.run("pytest", "benchmarks", "-q", *options, *session.posargs)
