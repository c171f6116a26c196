"""`gpu-health collective`: do the nodes of a job reach each other, and fast enough?

Started on every node of the job with the variables that training gets: MASTER_ADDR, MASTER_PORT, NNODES,
NODE_RANK. All nodes end with the same report and the same exit code: 0 all is well, 3 could not be tested,
4 a node or a link is named. Never 1 or 2: those speak of GPUs, and a slow cable is none.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from ecs_gpu_recovery.health.collective import conductor, member, rendezvous, transfer
from ecs_gpu_recovery.health.collective.conductor import NOT_TESTED, Conductor, Named, Plan
from ecs_gpu_recovery.health.collective.member import Member
from ecs_gpu_recovery.health.collective.rendezvous import Guest, Hall, Message
from ecs_gpu_recovery.health.judge import report
from ecs_gpu_recovery.health.sources import simulated

_PATIENCE_S = 60.0

_TEXT = """\
All nodes of a job at once: an all-reduce with NCCL where every node has GPUs and PyTorch, else around a ring
with plain TCP and nothing but Python. When that fails or is slow, nodes are tested two by two, so that the
report can name the node or the link. Start it on every node, with the variables of a training task.

  0  all nodes reach each other, fast enough
  3  could not be tested (also: wrong arguments, rank 0 not reached)
  4  a node or a link is named in the report
"""


def run(argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """The command; returns the exit code."""
    options = _parser(parser).parse_args(argv)
    rank, world = options.node_rank, options.nnodes
    if not 0 <= rank < world:
        parser.error(f"node rank {rank} is none of 0 to {world - 1}: set NNODES and NODE_RANK")
    done = _test(options)
    if options.report:
        report.write_json(options.report, done)
    report.say(json.dumps(done, indent=2) if options.json else table(done))
    code = done.get("exit_code")
    return code if isinstance(code, int) else NOT_TESTED


def _test(options: argparse.Namespace) -> Message:
    plan = Plan(
        backend=options.backend,
        size=int(options.mib * (1 << 20)),
        repeats=options.repeats,
        deadline_s=options.deadline,
        join_s=options.join_deadline,
        min_gbit_s=options.min_gbit,
        slow_share=options.slow_share,
        always_pairs=options.pairs,
    )
    if options.node_rank != 0:
        return _follow(options, plan)
    guests = [Guest(rank=rank) for rank in range(options.nnodes)]
    try:
        hall = Hall(transfer.listen(options.port), guests, options.key, options.master)
    except OSError as error:
        why = f"port {options.port} cannot be listened on: {error.strerror}"
        return conductor.not_tested(why, options.nnodes)
    own = threading.Thread(target=_follow, args=(options, plan, "localhost"), daemon=True)
    own.start()
    try:
        done = Conductor(hall, plan).run()
        own.join(_PATIENCE_S)
    finally:
        hall.close()
    return done


def _follow(options: argparse.Namespace, plan: Plan, master: str | None = None) -> Message:
    """A node among others. Rank 0 does this too, beside conducting."""
    listener = transfer.listen()
    hello: Message = {
        "rank": options.node_rank,
        "key": options.key,
        "node": options.name,
        "address": options.address,
        "port": listener.getsockname()[1],
        **member.look_for_torch(plan.backend),
    }
    world = options.nnodes
    try:
        line = rendezvous.report_to(master or options.master, options.port, hello, plan.join_s)
    except OSError as error:
        listener.close()
        at = f"{options.master}:{options.port}"
        return conductor.not_tested(f"rank 0 was not reached at {at}: {error}", world)
    node = Member(rank=options.node_rank, line=line, listener=listener, bytes_per_s=_throttle())
    try:
        return node.serve(plan.join_s + 2 * plan.deadline_s + _PATIENCE_S)
    except OSError as error:
        named = Named(kind="node-died", nodes=("rank 0",), ranks=(0,), evidence=str(error))
        return conductor.not_tested(f"rank 0 at {options.master} is gone: {error}", world, named)
    finally:
        line.close()
        listener.close()


def _throttle() -> float | None:
    """A simulated node may have a slow network."""
    node = simulated.here()
    return node.network_bytes_per_s() if isinstance(node, simulated.SimulatedNode) else None


def table(done: Message) -> str:
    """For people: the result, the nodes, the pairs, what was found."""
    whole = done["all_nodes"]
    speed = whole.get("gbit_s") if isinstance(whole, dict) else None
    lines = [f"{str(done['result']).upper()}  (exit code {done['exit_code']})", str(done["why"]), ""]
    if isinstance(speed, float):
        lines.append(f"{done['world']} node(s) at once with {done['backend']}: {speed:.3g} Gbit/s")
    found, tested = done["findings"], done["pairs"]
    for pair in tested if isinstance(tested, list) else []:
        result = pair["problem"] or f"{pair['gbit_s']:.3g} Gbit/s"
        lines.append(f"round {pair['round']}: rank {pair['a']} - rank {pair['b']}: {result}")
    for one in found if isinstance(found, list) else []:
        lines.append(f"{one['kind']}: {' - '.join(one['nodes'])}: {one['evidence']}")
    return "\n".join(lines)


def _parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    env = os.environ
    parser.description = _TEXT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--nnodes", type=int, default=env.get("NNODES", "1"), metavar="N", help="how many nodes (NNODES)")
    add(
        "--node-rank",
        type=int,
        default=env.get("NODE_RANK", "0"),
        metavar="R",
        help="which one this is (NODE_RANK)",
    )
    add("--master", default=env.get("MASTER_ADDR", "127.0.0.1"), metavar="HOST", help="rank 0 (MASTER_ADDR)")
    add("--port", type=int, default=env.get("MASTER_PORT", "29500"), help="where it listens (MASTER_PORT)")
    add("--key", default=env.get("JOB_ID", ""), help="nodes with another key are turned away (JOB_ID)")
    add("--name", default=env.get("GPU_RECOVERY_NODE") or os.uname().nodename, help="this node in the report")
    add("--address", default="", help="where the others reach this node, if not where it calls from")
    add("--backend", choices=("auto", "nccl", "gloo", "tcp"), default="auto", help="what carries the data")
    add("--mib", type=_positive, default=32.0, metavar="MIB", help="how much data (default 32)")
    add("--repeats", type=_count, default=4, help="the best of so many counts (default 4)")
    add("--min-gbit", type=_positive, metavar="GBIT/S", help="slower than this is bad")
    add(
        "--slow-share",
        type=_positive,
        default=0.5,
        metavar="SHARE",
        help="without --min-gbit: slower than this share of the usual speed is bad (default 0.5)",
    )
    add("--pairs", action="store_true", help="test pairs even when all together are fast enough")
    add("--deadline", type=_positive, default=60.0, metavar="S", help="for each step (default 60)")
    add("--join-deadline", type=_positive, default=120.0, metavar="S", help="to come together (default 120)")
    add("--json", action="store_true", help="print the report as JSON instead of a table")
    add("--report", type=Path, metavar="FILE", help="also write the JSON report here, all or nothing")
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError("must be above zero")
    return number


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError("must be 1 to 1000")
    return number
