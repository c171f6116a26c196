"""Builds what the functions run: build/lambda/<arch>, the package with its locked requirements beside it.

One folder serves all functions. No Docker is needed: where this environment holds exactly the locked versions
(`pip install -r requirements.txt` leaves it so) and they are plain Python, they are copied and no network is
needed either; otherwise the installer fetches them for the platform of the functions.

Of botocore's descriptions of AWS only those of the services that the functions call are kept: the rest is most of the
folder, and botocore looks through all of it when it makes its first client.

The byte code is of the unchecked-hash kind: the zip archive of an asset carries no true times, so byte code
of the usual kind would count as stale and be made again at every cold start.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from tools import project
from tools.installer import uv
from tools.project import ROOT, ProblemError

PLATFORMS = {"arm64": "aarch64-manylinux2014", "x86_64": "x86_64-manylinux2014"}
PYTHON = "3.13"
PACKAGE = ROOT / "ecs_gpu_recovery"
#: The folders of the package that functions import; of the rest they need the modules at the top.
SHIPPED = frozenset({"aws", "core", "engine", "lambdas"})
#: At the top, but only for a deployment.
NOT_SHIPPED = frozenset({"ecs_gpu_recovery_stack.py"})
#: The services that `aws/wiring.py` makes clients for.
SERVICES = frozenset({"autoscaling", "dynamodb", "ec2", "ecs", "events", "logs", "s3", "sns", "ssm"})
#: What installers leave behind; it differs from one installation to the next.
_TRACES = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"})
_FOLDER = ROOT / "build" / "lambda"
#: Changes with the way the folder is made.
_RECIPE = "4"


def ensure(arch: str) -> Path:
    """The folder for this architecture, built again if anything that goes into it has changed."""
    with _one_at_a_time():
        folder, stamp = _FOLDER / arch, _FOLDER / f"{arch}.sha256"
        wanted = digest(arch)
        if not (folder.is_dir() and stamp.exists() and stamp.read_text(encoding="ascii") == wanted):
            print(f"Building what the functions run, for {arch}", file=sys.stderr, flush=True)
            build(arch)
    return folder


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two that find it missing must not both build: the second would take it from under the first."""
    if sys.platform == "win32":  # there is no such lock; a person deploys once at a time
        yield
        return
    import fcntl

    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(arch: str, *, fetch: bool = False) -> Path:
    """Makes the folder beside its place and moves it there whole, so nobody ever sees half of one."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    folder, stamp = _FOLDER / arch, _FOLDER / f"{arch}.sha256"
    wanted = digest(arch)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as place:
        made = Path(place, "made")
        made.mkdir()
        if fetch or not copy_installed(made):
            _fetch(arch, made)
        drop_other_services(made)
        for file in shipped():
            target = made / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        compile_all(made)
        stamp.unlink(missing_ok=True)
        if folder.exists():
            folder.rename(Path(place, "old"))
        made.rename(folder)
    stamp.write_text(wanted, encoding="ascii")
    return folder


def digest(arch: str) -> str:
    """Of everything that goes into the folder."""
    found = hashlib.sha256(f"{_RECIPE} {arch} {PYTHON} {sys.version_info[:2]}".encode())
    found.update(_lock().read_bytes())
    for file in shipped():
        found.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return found.hexdigest()


def shipped() -> list[Path]:
    """The package's files, less what no function imports."""
    top = [file for file in PACKAGE.iterdir() if file.is_file() and file.name not in NOT_SHIPPED]
    below = [file for name in SHIPPED for file in (PACKAGE / name).rglob("*") if file.is_file()]
    return sorted(file for file in (*top, *below) if file.suffix != ".pyc")


def locked() -> dict[str, str]:
    """Every requirement of the functions with its exact version."""
    lines = _lock().read_text(encoding="utf-8").splitlines()
    return {
        found[1]: found[2] for line in lines if (found := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line))
    }


def _lock() -> Path:
    return project.locks()["lambda"].path


def copy_installed(target: Path) -> bool:
    """From this environment, if it holds all of them as locked and as plain Python; else nothing."""
    found = []
    for name, version in locked().items():
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return False
        plain = "Root-Is-Purelib: true" in (distribution.read_text("WHEEL") or "")
        if distribution.version != version or not plain or distribution.files is None:
            return False
        found.append(distribution)
    for distribution in found:
        for file in distribution.files or ():
            if ".." in file.parts or "__pycache__" in file.parts or file.name in _TRACES:
                continue
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), place)
    return True


def _fetch(arch: str, target: Path) -> None:
    options = ["--python-version", PYTHON, "--python-platform", PLATFORMS[arch], "--python", sys.executable]
    options += ["--only-binary", ":all:", "--require-hashes", "--no-deps", "--link-mode", "copy", "--quiet"]
    purpose = "fetch what the functions need (once a registry can be reached: make build-lambda)"
    uv("pip", "install", "--target", target, *options, "-r", _lock(), purpose=purpose)
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    for trace in (file for file in target.glob("*.dist-info/*") if file.name in _TRACES):
        trace.unlink()


def drop_other_services(folder: Path) -> None:
    """Each service is described in a folder of its own; what is in no such folder is about all of them."""
    for place in (folder / "botocore" / "data").iterdir():
        if place.is_dir() and place.name not in SERVICES:
            shutil.rmtree(place)


def compile_all(folder: Path) -> None:
    """Byte code for the functions' own Python. Without that version here, they compile for themselves."""
    python = _python()
    if python is None:
        print(f"No Python {PYTHON} here: the functions will start a little slower", file=sys.stderr)
        return
    command = [python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    done = subprocess.run(
        [*command, "-s", folder, "-p", "/var/task", folder], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise ProblemError(f"Could not compile the functions.\n{done.stdout}{done.stderr}")


def _python() -> str | None:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON:
        return sys.executable
    if shutil.which("sh") is None:
        return None
    asked = subprocess.run(
        ["sh", ROOT / "tools" / "find-python.sh", PYTHON], stdout=subprocess.PIPE, text=True
    )
    return asked.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.build_lambda", description=__doc__)
    parser.add_argument("--arch", choices=list(PLATFORMS), default="arm64", help="of the functions")
    parser.add_argument("--fetch", action="store_true", help="take nothing from this environment")
    options = parser.parse_args()
    folder = build(options.arch, fetch=options.fetch)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder.relative_to(ROOT)}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    try:
        main()
    except ProblemError as problem:
        sys.exit(str(problem))
