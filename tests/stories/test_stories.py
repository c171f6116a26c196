"""The stories people were promised, on the AWS side."""

from __future__ import annotations

import pytest

from tests.stories.plots import PLOTS, Plot
from tests.stories.world import a_world


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_a_story_ends_as_it_must(plot: Plot) -> None:
    with a_world(policy=plot.policy) as world:
        plot.tell(world)
