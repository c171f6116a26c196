"""What a rank wrote last, as far as it tells what the rank died of."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.health.judge.training_log import last_words

PEER = "RuntimeError: Connection closed by peer [10.0.0.2]:29500"
DIVIDED = "ZeroDivisionError: division by zero"
OWN = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("lines", "words", "echo"),
    [
        (["step 1", "step 2", "", "step 3", "step 4"], "step 2 | step 3 | step 4", False),
        (["step 1", OWN, "step 2", "bye"], OWN, False),
        ([PEER, OWN], OWN, False),
        (["step 1", PEER, "bye"], PEER, True),
        (["ValueError: first", "KeyError: second"], "ValueError: first", False),
        (["    print(1/0)", "          ~^~", DIVIDED], DIVIDED, False),
        (["my.own.BatchError", "bye"], "my.own.BatchError", False),
        ([], "", False),
    ],
    ids=[
        *("the last lines", "a known complaint", "not the echo", "the echo alone", "the first"),
        *("the foot of a traceback", "an exception without a word", "nothing"),
    ],
)
def test_the_line_that_tells_speaks_for_the_log(lines: list[str], words: str, echo: bool) -> None:
    assert last_words(lines) == (words, echo)
