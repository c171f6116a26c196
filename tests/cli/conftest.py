"""Commands are run as a person runs them: arguments in, two streams and an exit code out."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the embedded cluster supervises processes through Linux's /proc", allow_module_level=True)

from tests.embedded.helpers import LiveController, eventually, live_controller

if TYPE_CHECKING:
    from tests.cli.aws_person import Person


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        assert self.code in (0, 1), self
        return json.loads(self.out)

    def refused(self, *words: str, code: int = 4) -> None:
        """Why was told with all of these words, and nothing was answered."""
        assert self.code == code, self
        assert [word for word in words if word not in self.err] == [], self.err
        assert "Traceback" not in self.err
        assert not self.out, self.out

    def tells(self, *words: str, code: int = 0) -> None:
        """All of these words are in its answer."""
        assert self.code == code, self
        assert [word for word in words if word not in self.out] == [], self.out


Command = Callable[..., Result]
#: How a message about an unknown job or node ends.
WHAT_THERE_IS = ". What there is:  gpu-recovery jobs   |   gpu-recovery nodes\n"


def run_command(*args: object, stdin: str = "") -> Result:
    """gpu-recovery ARGS, in this process, because a hundred starts of Python take a minute."""
    from ecs_gpu_recovery.main import run

    out, err = io.StringIO(), io.StringIO()
    code = 0
    argv = ["gpu-recovery", *map(str, args)]
    wide = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # pytest may set one
    with (
        patch.dict(os.environ, wide, clear=True),
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def command() -> Command:
    return run_command


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """A control plane with three nodes that the tests of a module share. Each leaves its nodes free."""
    with live_controller(tmp_path_factory.mktemp("state"), nodes=3) as made:
        yield made


@pytest.fixture
def free_nodes(live: LiveController) -> None:
    eventually(lambda: all(node.claimable for node in live.side.nodes()), "nodes free")


@pytest.fixture
def here(live: LiveController) -> Iterator[Command]:
    """Commands on that control plane."""
    with patch.dict("os.environ", {"GPU_RECOVERY_STATE": str(live.state)}):
        yield run_command


@pytest.fixture
def unchanged(live: LiveController) -> Iterator[None]:
    """A refused command has changed nothing: the records are the same afterwards, and so are the folders."""

    def records() -> tuple[Any, ...]:
        jobs = live.side.jobs(None, 1000, "").jobs
        nodes = [(node.name, node.job_id, node.hold, node.status) for node in live.side.nodes()]
        kept = live.state / "checkpoints"
        folders = sorted(path.name for path in kept.iterdir()) if kept.exists() else []
        return jobs, nodes, folders

    before = records()
    yield
    assert records() == before


@pytest.fixture
def person() -> Iterator[Person]:
    """Somebody with two nodes on AWS."""
    from tests.cli.aws_person import a_person  # which runs commands too

    with a_person() as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script that says who it is and ends well."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:], os.getcwd())\n"
        "print('port', os.environ['MASTER_PORT'], 'kept in', os.environ['CHECKPOINT_DIR'])\n"
        "print('mine', os.environ.get('MINE'))\n"
    )
    return path
