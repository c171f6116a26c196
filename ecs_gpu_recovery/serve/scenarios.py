"""What can go wrong in the demo, and how it must end then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.model import JobStatus, NodeStatus


@dataclass(frozen=True, slots=True)
class Scenario:
    fault: str  #: what is injected; empty for nothing
    says: str
    status: JobStatus | None = JobStatus.COMPLETE  #: of the job; None: no job runs at all
    attempt: int = 1
    victim: NodeStatus = NodeStatus.AVAILABLE  #: how the broken node must end
    everywhere: bool = False  #: not on one node, but on all
    spares: int = 0  #: how many there are, if nobody says
    victims: int = 1


_OFF_BUS = Scenario("off-bus", "a GPU falls off the bus (Xid 79)")
SCENARIOS = {
    "none": Scenario("", "nothing goes wrong", attempt=0),
    "app": Scenario("app-xid", "the program makes a bad memory access (Xid 31)"),
    "gpu": _OFF_BUS,
    "gpu-permanent": Scenario("permanent", "a GPU breaks for good", victim=NodeStatus.FAILED, spares=1),
    "idle-gpu": replace(_OFF_BUS, says=f"{_OFF_BUS.says} while no job has it", status=None, attempt=0),
    "node-lost": Scenario("lost", "a node loses power for good", victim=NodeStatus.UNKNOWN, spares=1),
    "two-nodes": replace(_OFF_BUS, spares=1, victims=2),
    "kill": Scenario("kill", "a rank is killed (SIGKILL)"),
    "hang": Scenario("hang", "a GPU's firmware stops answering (Xid 119), and its rank freezes"),
    "freeze": Scenario("freeze", "a rank freezes without dying; its GPUs are healthy"),
    "storm": replace(_OFF_BUS, says="a GPU of every node falls off the bus (Xid 79)", everywhere=True),
    "oom": Scenario("oom", "a rank runs out of memory", JobStatus.FAILED, attempt=0),
}
#: The same without a node to go to.
WITHOUT_SPARES = {
    "gpu-permanent": Scenario("permanent", "a GPU breaks for good", JobStatus.FAILED, 0, NodeStatus.FAILED),
    "node-lost": Scenario("lost", "a node loses power, and gets it back later"),
}
