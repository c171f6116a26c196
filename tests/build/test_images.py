"""What goes into the images: they can't be built in a test, so everything they are made of is tried by itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.programs import a_program, ran
from tools.installer import uv
from tools.project import ProblemError

ROOT = Path(__file__).resolve().parents[2]
HEALTH, CONSOLE = ROOT / "docker" / "Dockerfile", ROOT / "docker" / "console" / "Dockerfile"
IMAGES = [HEALTH, CONSOLE]
HADOLINT = Path(sys.executable).with_name("hadolint")
SECRET = re.compile(
    r"secret|passw|token|api_?key|credential|BEGIN [A-Z ]*PRIVATE KEY|AKIA[0-9A-Z]{16}", re.IGNORECASE
)
#: A version with at least two numbers, or a digest: what is pulled today is pulled in a year.
PINNED = re.compile(r"(:[^:@]*[0-9]+\.[0-9]+[^:@]*)(@sha256:[0-9a-f]{64})?")


def instructions(image: Path) -> list[str]:
    """Without comments, with continued lines put together."""
    lines = [line for line in image.read_text().splitlines() if not line.lstrip().startswith("#")]
    return [line for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines() if line.strip()]


@pytest.mark.parametrize("image", IMAGES, ids=["health", "console"])
def test_the_linter_has_nothing_to_say(image: Path) -> None:
    done = ran(HADOLINT, "--no-color", image)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_linter_would_say_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN apt-get install curl\n")
    assert ran(HADOLINT, tmp_path / "Dockerfile").returncode != 0


@pytest.mark.parametrize("image", IMAGES, ids=["health", "console"])
def test_every_base_is_pinned(image: Path) -> None:
    known = dict(re.findall(r"^ARG (\w+)=(\S+)", image.read_text(), re.MULTILINE))
    bases = [line.split()[1] for line in instructions(image) if line.startswith("FROM ")]
    assert bases
    for base in bases:
        name = known.get(base.strip("${}"), base)
        assert PINNED.search(name), f"{name} may be another image tomorrow"


@pytest.mark.parametrize("image", IMAGES, ids=["health", "console"])
def test_no_secret_is_baked_in_and_root_has_a_reason(image: Path) -> None:
    assert not [line for line in instructions(image) if SECRET.search(line)]
    users = [line for line in instructions(image) if line.startswith("USER ")]
    assert users or "It runs as root" in image.read_text(), "say why, or don't"


def allowed(path: str, image: Path = HEALTH) -> bool:
    """As Docker reads the ignore file: the last rule that fits wins."""
    verdict = True
    for rule in image.with_name("Dockerfile.dockerignore").read_text().split():
        pattern = rule.removeprefix("!").removeprefix("**/")
        parts = Path(path).parts
        prefixes = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        hit = any(fnmatch(part, pattern) for part in (parts if "**/" in rule else prefixes))
        verdict = rule.startswith("!") if hit else verdict
    return verdict


def test_everything_that_is_copied_is_there_and_reaches_the_build() -> None:
    copied = [line.split()[1:-1] for line in instructions(HEALTH) if line.startswith("COPY ")]
    sources = [source for line in copied for source in line]
    assert "docker/gpu-health-task" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert allowed(source), f"{source} is held back by the ignore file"


def test_nothing_else_reaches_the_build() -> None:
    for path in (
        ".git/config",
        ".env",
        "tests/conftest.py",
        "ecs_gpu_recovery/__pycache__/x.pyc",
        "requirements/dev.txt",
    ):
        assert not allowed(path), path
    assert allowed("ecs_gpu_recovery/health/policy.toml")


#: What the project is tested and built with; none of it is for those who run it.
EQUIPMENT = ("testbed", "tests", "tools")


def test_no_image_gets_the_test_bed() -> None:
    images = [image for image in ROOT.glob("docker/**/Dockerfile") if _copied(image)]
    assert len(images) > 1
    for image in images:
        for top in EQUIPMENT:
            files = [str(path.relative_to(ROOT)) for path in (ROOT / top).rglob("*.py")]
            assert files
            assert [path for path in files if allowed(path, image)] == []
        assert not {source.split("/")[0] for source in _copied(image)} & {*EQUIPMENT, "."}


def _copied(image: Path) -> list[str]:
    """From the repository, not from an earlier stage."""
    lines = [line.split()[1:-1] for line in instructions(image) if line.startswith("COPY ")]
    return [source for words in lines if not words[0].startswith("--from") for source in words]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"ecs_gpu_recovery"}
    tracked = {str(path.relative_to(ROOT)) for path in (ROOT / "ecs_gpu_recovery").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == tracked


def test_what_is_installed_is_locked_and_holds_what_the_programs_import() -> None:
    (install,) = [line for line in instructions(HEALTH) if "--require-hashes" in line]
    locks = re.findall(r"-r (\S+)", install)
    assert locks
    named = {}
    for lock in locks:
        text = (ROOT / lock).read_text()
        for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE):
            assert named.setdefault(name, version) == version, f"two versions of {name}"
    assert {"boto3", "nvidia-ml-py", "typer"} <= set(named), "EventBridge, NVML, the command"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    try:
        uv("build", "--wheel", "--offline", "--out-dir", place, ROOT, purpose="build the wheel")
    except ProblemError as problem:
        pytest.skip(f"the wheel can't be built here: {problem}")
    (made,) = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package alone, in an environment with nothing else in it."""
    place = tmp_path_factory.mktemp("image")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    uv("pip", "install", "--offline", "--no-deps", "--python", python, wheel, purpose="install the wheel")
    return place / "venv" / "bin"


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return ran(*command, env=env or {"PATH": os.environ["PATH"]}, cwd="/")


def test_the_health_program_needs_nothing_but_python(installed: Path) -> None:
    for arguments in (
        ["--help"],
        ["watch", "--help"],
        ["explain", "--help"],
        ["collective", "--help"],
        ["rules"],
    ):
        ran = run(installed / "gpu-health", *arguments)
        assert (ran.returncode, ran.stderr) == (0, ""), arguments
        assert len(ran.stdout) > 200


def test_a_check_and_a_watch_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    env = {"PATH": os.environ["PATH"], "GPU_HEALTH_SIMULATED": str(tmp_path)}
    ran = run(installed / "gpu-health", "--json", env=env)
    assert (ran.returncode, json.loads(ran.stdout)["verdict"]) == (1, "reboot"), ran.stderr
    ran = run(installed / "gpu-health", "watch", "--once", "--from-start", "--ecs", "--eventbridge", env=env)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["code"] == 79
    assert "kept, to be tried again" in ran.stderr, "no ECS agent here: the news waits"


def test_the_example_of_a_training_task_is_in_the_wheel(installed: Path) -> None:
    assert run(installed / "python", "-m", "ecs_gpu_recovery.examples.train", "--help").returncode == 0


# -- the health check as a task --------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A container's programs: a gpu-health that tells how it was called, and the shell that the task needs."""
    for name in ("sh", "env", "true"):
        os.symlink(shutil.which(name) or f"/bin/{name}", tmp_path / name)
    a_program(tmp_path / "gpu-health", 'for a in "$@"; do echo "$a"; done\nexit ${ENDS_WITH:-0}')
    return tmp_path


def call(task: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "docker" / "gpu-health-task"
    return run(task / "sh", script, *arguments, env={"PATH": str(task), **env})


def test_the_task_can_be_run_as_it_is() -> None:
    script = ROOT / "docker" / "gpu-health-task"
    assert script.read_text().startswith("#!/bin/sh\n")
    assert os.access(script, os.X_OK)


def test_the_tasks_exit_code_is_the_verdict(task: Path) -> None:
    for code in range(4):
        assert call(task, ENDS_WITH=str(code)).returncode == code


def test_the_task_passes_on_what_it_is_told(task: Path) -> None:
    assert call(task).stdout.split() == ["--json-line", "--level", "1"]
    told = call(task, "--require", "driver", GPU_HEALTH_LEVEL="2", GPU_HEALTH_EXPECT_GPUS="8").stdout.split()
    assert told == ["--json-line", "--level", "2", "--require", "driver", "--expect-gpus", "8"]
    assert call(task, GPU_HEALTH_EXPECT_IDLE="1").stdout.split()[-2:] == ["--require", "idle"]
    assert call(task, GPU_HEALTH_CHECKPOINTS="/fsx/j 1").stdout.split()[-3:] == [
        "--checkpoints",
        "/fsx/j",
        "1",
    ]


def test_the_watches_of_an_engine_of_its_own_are_switched_on(task: Path) -> None:
    for name in ("nv-hostengine", "dcgmi"):
        a_program(task / name, f'echo "called: {name} $*"')
    ran = call(task)
    assert [line for line in ran.stderr.splitlines() if line.startswith("called")] == [
        "called: nv-hostengine ",
        "called: dcgmi health -g 0 -s a",
    ]
    assert ran.stdout.split() == ["--json-line", "--level", "1"]


def test_an_engine_that_does_not_start_costs_only_its_answers(task: Path) -> None:
    a_program(task / "nv-hostengine", "echo broken\nexit 1")
    ran = call(task)
    assert ran.returncode == 0
    assert ran.stdout.split() == ["--json-line", "--level", "1"], "its words are not mixed into the report"
    assert "DCGM will not be asked" in ran.stderr


def test_a_container_without_the_program_proves_nothing(task: Path) -> None:
    (task / "gpu-health").unlink()
    assert call(task).returncode not in (0, 1, 2), "those are verdicts"
