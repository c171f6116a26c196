"""What holds for every test: no way to a real AWS account, and no deadline on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from testbed.aws.server import serve

ROOT = Path(__file__).resolve().parent.parent

# How long one example takes says more about the machine than about the code.
hypothesis.settings.register_profile("project", deadline=None, print_blob=True)
hypothesis.settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """Leaves no way to somebody's AWS account: no profile, no file, no machine role, made-up keys.

    And lets Python keep what it compiles: else every process that a test starts compiles all of it again, and the CDK
    alone takes ten seconds for it.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        if name != "AWS_CA_BUNDLE":
            del os.environ[name]
    os.environ.update(
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        AWS_EC2_METADATA_DISABLED="true",
    )


#: What goes to one worker as a whole, longest first: a deployment, templates that take long to make, one browser.
#: All else goes file by file. (xdist's own groups are lost on this pytest, which lets nobody rename a test.)
TOGETHER = ("tests/infra/test_deployed.py", "tests/infra/", "tests/console/test_browser")
#: These make templates too: the CDK is loaded once, not in every worker.
WITH_TEMPLATES = ("tests/metrics/test_cloudwatch.py", "tests/cli/test_aws_permissions.py")
#: Long searches that share nothing: each goes by itself.
APART = (
    *("tests/model/test_worlds.py", "tests/model/test_errands.py"),
    *("tests/nights/test_mutants.py", "tests/nights/test_skies.py"),
)


def place(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file in WITH_TEMPLATES:
        return "tests/infra/"
    if file in APART:
        return nodeid
    return next((part for part in TOGETHER if file.startswith(part)), file)


class ByPlace(LoadScopeScheduling):
    """Tests that share something costly run in one worker, one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return place(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByPlace:
    config.option.loadscopereorder = False
    return ByPlace(config, log)  # type: ignore[arg-type]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that no worker is left alone with it at the end."""
    items.sort(
        key=lambda item: (place(item.nodeid) not in TOGETHER, not item.nodeid.startswith(APART)),
    )


@pytest.fixture(scope="session")
def ministack_python() -> Path:
    """A Python that has the local AWS. It is installed by the first test that asks for it."""
    subprocess.run([sys.executable, "-m", "tools.environment", "ministack"], cwd=ROOT, check=True)
    return ROOT / ".venv-ministack" / "bin" / "python"


@pytest.fixture(scope="session")
def aws_url(ministack_python: Path) -> Iterator[str]:
    """The address of one local AWS, which all tests of a process share that need no more of it than tables."""
    with serve(ministack_python) as server:
        yield server.url
