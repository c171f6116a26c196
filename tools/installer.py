"""The package installer, uv: brought into the project's own folder once, then run with our settings.

Nothing outside the project is touched or relied on: uv's cache is kept in .tools unless the environment names
another place, and uv never downloads a Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tools.project import TOOLS, UV_LOCK, ProblemError, locks

UV = TOOLS / "bin" / "uv"
REGISTRY_HELP = """\
If the package registry cannot be reached: check the network. Behind a proxy, set HTTPS_PROXY. With a mirror,
set PIP_INDEX_URL or UV_DEFAULT_INDEX to it. With a certificate that is not known, set SSL_CERT_FILE to your
authorities. Then run make again: what was done already is kept."""


def _environment() -> dict[str, str]:
    cache = os.environ.get("UV_CACHE_DIR") or str(TOOLS / "cache")
    given = {"UV_CACHE_DIR": cache, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    mirror = os.environ.get("PIP_INDEX_URL")
    if mirror and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(os.environ):
        given["UV_DEFAULT_INDEX"] = mirror
    return {**os.environ, **given}


def uv(*arguments: str | Path, purpose: str, stdin: str | None = None) -> str:
    """Runs uv and returns what it printed. `purpose` completes the sentence "Could not ..."."""
    _bring_uv()
    return _run([UV, *arguments], purpose=purpose, stdin=stdin)


def _run(command: list[str | Path], *, purpose: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        command, input=stdin if stdin is not None else "", text=True, capture_output=True, env=_environment()
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-15:]
        quoted = "\n".join(f"  | {line}" for line in words)
        raise ProblemError(f"Could not {purpose}.\n{quoted}\n{REGISTRY_HELP}")
    return done.stdout


def _bring_uv() -> None:
    """Installs the locked uv with pip, in a throw-away place, and keeps the one program out of it."""
    lock = locks()[UV_LOCK]
    wanted = lock.requirements[0].partition("==")[2]
    if _version() == wanted:
        return
    print(f"Bringing the package installer uv {wanted} into .tools", file=sys.stderr, flush=True)
    TOOLS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as place:
        arguments = ["install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-deps"]
        arguments += ["--only-binary", ":all:", "--require-hashes", "-r", str(lock.path)]
        purpose = f"install uv from {lock.file}"
        if find_spec("ensurepip"):
            _run([sys.executable, "-m", "venv", place], purpose="make a virtual environment for uv")
            _run([Path(place, "bin", "python"), "-m", "pip", *arguments], purpose=purpose)
        elif find_spec("pip"):
            _run([sys.executable, "-m", "pip", *arguments, "--target", place], purpose=purpose)
        else:
            raise ProblemError(_no_pip())
        UV.parent.mkdir(exist_ok=True)
        shutil.move(Path(place, "bin", "uv"), UV.with_suffix(".new"))
        UV.with_suffix(".new").replace(UV)


def _no_pip() -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"{sys.executable} (Python {version}) has neither venv nor pip, so nothing can be installed.\n"
        f"On Debian or Ubuntu: apt-get install python{version}-venv. Or name another Python: "
        "make PYTHON=/path/to/python3.13"
    )


def _version() -> str | None:
    if not UV.exists():
        return None
    try:
        said = subprocess.run([UV, "--version"], text=True, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None  # made for another machine, or half-written: it is brought again
    return said.split()[1]
