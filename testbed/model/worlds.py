"""The worlds that are searched, each with one kind of trouble in the foreground.

All troubles at once would be too many states; one at a time, and in the pairs that have bitten, they are few enough
to see every one. `QUICK` is searched on every Python, `THOROUGH` on one, `DEEP` by `make model`.
"""

from __future__ import annotations

from dataclasses import replace

from .bounds import STEP, Bounds, quick_policy

EVERY_END = ("suspect", "fault", "oom", "host gone", "no room", "no image", "person")
NO_RETRY = quick_policy(max_retries=0)
GOES_ON = quick_policy(restart_when_healthy="progress")
#: One rank dies of a GPU fault, its node reboots, the job starts again: the story that the other worlds disturb.
RECOVERY = Bounds(failures=1, verdicts=("reboot",))
LOSS = Bounds(failures=0, deaths=1)
#: A person wants a node empty, once.
EMPTIED = Bounds(
    failures=0,
    leaves=1,
    delays=0,
    verdicts=("reboot",),
    policy=replace(quick_policy(), max_attempts=1),
)

#: A reboot cures nothing: its group takes the machine away, and another one comes, or none.
REPLACED = Bounds(
    nodes=1,
    comers=1,
    delays=0,
    verdicts=("healthy", "reboot"),
    policy=quick_policy(post_reboot_check=True, repair_rungs="reboot,replace"),
)
#: The same of a machine that does not come back from its reboot.
STRANDED = replace(REPLACED, strands=1)
#: The same of a job whose rank may move, to the machine that has come or back to its own name.
MOVED = replace(
    REPLACED,
    moves=True,
    policy=replace(
        REPLACED.policy, wait_for_nodes=6 * STEP, wait_told_after=2 * STEP, failover_lost_after=2 * STEP
    ),
)

#: While a job waits for one node, a fault is seen on another.
SUSPECT = replace(RECOVERY, suspects=1, verdicts=("healthy", "reboot"), delays=0)

QUICK: dict[str, Bounds] = {
    "nothing goes wrong": Bounds(failures=0),
    "a recovery": RECOVERY,
    "every way a task can end": replace(RECOVERY, ends=EVERY_END, policy=NO_RETRY),
    "two verdicts and no retry": Bounds(verdicts=("healthy", "reboot"), policy=NO_RETRY),
    "a check before the first start": Bounds(failures=0, check_first=True, asks=1),
    "a node dies, and its agent reports later than it is back": replace(
        LOSS,
        nodes=1,
        lies=True,
        blind=True,
        noticed=True,
        late_stamps=True,
        slow_reports=True,
        verdicts=("healthy",),
    ),
    "a neighbour forges tasks": replace(RECOVERY, nodes=1, forged=True, stalls=1),
    "a start or a reboot is refused": replace(RECOVERY, refusals=1, delays=0),
    "a reboot waits for a permit": replace(RECOVERY, holds=1, delays=0),
    "witnesses say that a job of one node hangs": replace(RECOVERY, nodes=1, failures=0, witnesses=1),
    "a node is to be emptied": EMPTIED,
    "three nodes": replace(RECOVERY, nodes=3, delays=0),
    "a fault is seen on a node of a waiting job": SUSPECT,
    "a machine is replaced": REPLACED,
    "a machine that does not come back is replaced": STRANDED,
    "a rank freezes after a fatal fault": replace(RECOVERY, nodes=1, failures=0, faults=1, steps=1),
    "progress between two faults": replace(RECOVERY, nodes=1, failures=2, steps=1, delays=0),
    "a killed rank, and no node at fault": Bounds(
        nodes=1, failures=2, ends=("fault",), verdicts=("healthy",), steps=1, policy=GOES_ON, delays=0
    ),
}
THOROUGH: dict[str, Bounds] = {
    "every way a task can end, with a retry": replace(RECOVERY, ends=EVERY_END),
    "every verdict": Bounds(policy=NO_RETRY),
    "two failures and two retries": replace(RECOVERY, failures=2, policy=quick_policy(max_retries=2)),
    "a person stops the job": replace(RECOVERY, asks=1),
    "a node is to be emptied while its job recovers": replace(EMPTIED, failures=1),
    "a node is to be emptied, and a process stalls": replace(EMPTIED, stalls=1),
    "a process stalls or dies": replace(RECOVERY, stalls=1),
    "a process stalls, and ended tasks are not found": replace(
        RECOVERY, stalls=1, finds_ended=False, policy=NO_RETRY
    ),
    "a process stalls, and stops are not answered": replace(
        RECOVERY, stalls=1, answers_stop=False, policy=NO_RETRY
    ),
    "a process stalls while rows are written": replace(RECOVERY, stalls=1, rows=True, delays=0),
    "a process stalls while a person stops the job": replace(RECOVERY, stalls=1, asks=1, delays=0),
    "an agent flaps": replace(RECOVERY, flaps=1, delays=0),
    "old sightings arrive late": replace(RECOVERY, stale_sights=True, delays=0),
    "an order can't be sent": replace(RECOVERY, hiccups=1, delays=0),
    "the sweeper is late": replace(RECOVERY, late_sweeper=True),
    "tasks are slow to run": replace(RECOVERY, slow_start=True, delays=2),
    "a check after the reboot": Bounds(
        verdicts=("healthy", "reboot"), policy=quick_policy(post_reboot_check=True)
    ),
    "a GPU is missing after the reboot": replace(RECOVERY, fewer_gpus=True),
    "a reboot waits for a permit, slowly, or its sender stalls": replace(RECOVERY, holds=2, stalls=1),
    "a reboot waits for a permit while a person stops the job": replace(RECOVERY, holds=1, asks=1),
    "a node dies": LOSS,
    "a node dies, and its task says 0": replace(LOSS, lies=True, verdicts=("healthy",)),
    "witnesses say that the job hangs": replace(RECOVERY, failures=0, witnesses=1),
    "a node dies while a process stalls": replace(LOSS, stalls=1, lies=True, verdicts=("healthy",), delays=0),
    "a node that tells no boot id dies": replace(
        LOSS, lies=True, blind=True, noticed=True, late_stamps=True, verdicts=("healthy",)
    ),
    "a node dies and a person stops the job": replace(LOSS, asks=1, policy=NO_RETRY, verdicts=("reboot",)),
    "one node: a failure, a flap, a stall and a person": replace(
        RECOVERY, nodes=1, flaps=1, stalls=1, asks=1, delays=0
    ),
    "one node: two stalls, and an order that can't be sent": replace(
        RECOVERY, nodes=1, stalls=2, hiccups=1, rows=True
    ),
    "three nodes, slowly": replace(RECOVERY, nodes=3),
    "two nodes, with progress between two faults": replace(RECOVERY, failures=2, steps=1, delays=0),
    "a rank is killed, or a GPU breaks, with progress": Bounds(
        failures=2, ends=("fault",), verdicts=("healthy", "reboot"), steps=1, policy=GOES_ON, delays=0
    ),
    "two nodes, and one freezes or dies": replace(RECOVERY, faults=1, delays=0),
    "one node: progress, two faults and a stall": replace(
        RECOVERY, nodes=1, failures=2, steps=2, stalls=1, policy=GOES_ON, delays=0
    ),
    "witnesses, and a rank fails": replace(RECOVERY, witnesses=1, delays=0),
    "witnesses, and a process stalls": replace(RECOVERY, failures=0, witnesses=1, stalls=1, delays=0),
    "a node of a waiting job is suspected, and a process stalls": replace(SUSPECT, stalls=1),
    "a node of a waiting job is suspected, and a person stops the job": replace(SUSPECT, asks=1),
    "a node of a waiting job is suspected, and a reboot waits for a permit": replace(SUSPECT, holds=1),
    "a node of a waiting job is suspected, and the gate examines it": replace(
        SUSPECT, policy=quick_policy(post_reboot_check=True)
    ),
    "a machine is replaced, slowly": replace(REPLACED, delays=1),
    "a machine does not come back, or its sender stalls": replace(STRANDED, stalls=1),
    "a machine does not come back, or late, while its replacement waits": replace(
        STRANDED, holds=1, delays=1, verdicts=("reboot",)
    ),
    "a machine does not come back, and a person stops the job": replace(STRANDED, asks=1),
    "a machine does not come back, and its rank moves": replace(MOVED, strands=1, verdicts=("reboot",)),
    "a machine is replaced, or its sender stalls": replace(REPLACED, stalls=1),
    "a machine is replaced, if that may be": replace(REPLACED, holds=1, refusals=1, hiccups=1),
    "a machine is replaced, or its agent flaps": replace(REPLACED, flaps=1),
    "a machine is replaced, and a person stops the job": replace(REPLACED, asks=1),
    "a machine is replaced, and the next one too": replace(REPLACED, comers=2),
    "a machine is replaced, and its rank moves": replace(MOVED, verdicts=("healthy", "reboot", "replace")),
    "witnesses twice, and a person": replace(RECOVERY, failures=0, witnesses=2, asks=1, delays=0),
}
DEEP: dict[str, Bounds] = {
    "a node of a waiting job is suspected, with every verdict": replace(
        SUSPECT, verdicts=Bounds().verdicts, delays=1
    ),
    "a node of a waiting job is suspected, and an agent flaps": replace(SUSPECT, flaps=1),
    "every verdict, with a retry": Bounds(),
    "a failure and a death": replace(RECOVERY, deaths=1),
    "a failure and a death, and a person": replace(RECOVERY, deaths=1, asks=1, policy=NO_RETRY),
    "a death and a stall": replace(LOSS, stalls=1),
    "a death and a flap": replace(LOSS, flaps=1),
    "old sightings, slowly": replace(RECOVERY, stale_sights=True),
    "an order can't be sent, slowly": replace(RECOVERY, hiccups=1),
    "the sweeper is late twice": replace(RECOVERY, late_sweeper=True, delays=2),
    "a flap, slowly": replace(RECOVERY, flaps=1),
    "a stall with a late sweeper": replace(RECOVERY, stalls=1, late_sweeper=True, delays=4),
    "a stall with a late sweeper, and a person": replace(
        RECOVERY, stalls=1, asks=1, late_sweeper=True, delays=2
    ),
    "a stall and an order that can't be sent, with rows": replace(
        RECOVERY, stalls=1, hiccups=1, rows=True, delays=0
    ),
    "a stall, and ended tasks are not found": replace(RECOVERY, stalls=1, finds_ended=False),
    "one node: two failures, a flap, a stall and a person": Bounds(
        nodes=1, failures=2, flaps=1, asks=1, stalls=1
    ),
    "one node: every end, a death, a stall and a person": Bounds(
        nodes=1, ends=EVERY_END, deaths=1, asks=1, stalls=1
    ),
    "one node: two failures, two stalls, late": Bounds(
        nodes=1,
        failures=2,
        ends=("suspect", "no room"),
        verdicts=("reboot", "inconclusive"),
        stalls=2,
        hiccups=1,
        delays=2,
    ),
    "one node: a failure, a flap, a death, a stall, a refusal, late": replace(
        RECOVERY, nodes=1, flaps=1, deaths=1, lies=True, stalls=1, refusals=1, late_sweeper=True, delays=2
    ),
    "two stalls": replace(RECOVERY, stalls=2),
    "late stamps": replace(RECOVERY, slow_start=True, late_stamps=True),
    "three nodes and a stall": replace(RECOVERY, nodes=3, stalls=1, delays=0),
    "three nodes and a person": replace(RECOVERY, nodes=3, asks=1),
    "a machine is replaced, with every verdict": replace(REPLACED, verdicts=Bounds().verdicts, delays=1),
    "a machine is replaced, or goes by itself": replace(REPLACED, deaths=1),
    "a machine does not come back, or late, or goes by itself": replace(STRANDED, deaths=1, flaps=1),
    "a machine does not come back, or late, if it may be replaced": replace(
        STRANDED, holds=1, refusals=1, delays=1
    ),
    "a machine of two is replaced": replace(REPLACED, nodes=2),
    "a machine is replaced, its rank moves, and a process stalls": replace(MOVED, stalls=1),
    "a machine is replaced, and its rank moves, slowly": replace(MOVED, delays=1),
}
ALL = QUICK | THOROUGH | DEEP
