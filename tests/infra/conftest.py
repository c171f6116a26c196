"""Templates, made once per session: CDK starts a process of its own and takes seconds to load."""

from __future__ import annotations

import pytest

from tests.infra.stacks import EVERYTHING, Made, synthesize


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """As it comes, checked against the AWS Solutions rules while it is made."""
    return synthesize(tmp_path_factory.mktemp("plain"), {}, nag=True)


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With every option."""
    return synthesize(tmp_path_factory.mktemp("everything"), EVERYTHING, nag=True, arch="x86_64")
