"""What holds for every test: no way to a real AWS account, and no deadline on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# How long one example takes says more about the machine than about the code.
hypothesis.settings.register_profile("project", deadline=None, print_blob=True)
hypothesis.settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """Leaves no way to somebody's AWS account: no profile, no file, no machine role, made-up keys."""
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the local AWS run in one worker, one after the other, unless they have a group of their own."""
    for item in items:
        if item.get_closest_marker("ministack") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("ministack"))


@pytest.fixture(scope="session")
def ministack_python() -> Path:
    """A Python that has the local AWS. It is installed by the first test that asks for it."""
    subprocess.run([sys.executable, "-m", "tools.environment", "ministack"], cwd=ROOT, check=True)
    return ROOT / ".venv-ministack" / "bin" / "python"
