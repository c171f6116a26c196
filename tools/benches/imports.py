"""How much a function adds to the start of a process that needs AWS anyway.

Each run is a fresh process on the built folder, byte code and all: once the handler with its wiring, its log, its
metrics and the clients that its events need; once boto3 and the same clients, and nothing else. The two take turns. The
numbers are processor time over processor time, the median of the turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from testbed.aws.deployment import machine
from tools import build_lambda

RUNS = 15
#: What a usual event of each function leads to: records and tasks; where nodes are rebooted, commands too.
CLIENTS = {
    "ecs_task_handler": ("dynamodb", "ecs"),
    "dcgm_task_monitor": ("dynamodb", "ecs", "ssm"),
    "ecs_instance_monitor": ("dynamodb", "ecs", "ssm"),
    "recovery_sweeper": ("dynamodb", "ecs", "ssm"),
}
_SETTINGS = {
    "ECS_CLUSTER_NAME": "gpus",
    "DCGM_HEALTH_CHECK_TASK": "check",
    "SNS_TOPIC_ARN": "arn:aws:sns:us-east-1:123456789012:told",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def _ours(name: str, clients: tuple[str, ...]) -> str:
    """An event that is nobody's goes through everything but the clients; they are made where an event of ours would."""
    return f"""
import gc, sys, time
sys.path.insert(0, "")
began = time.process_time()
from ecs_gpu_recovery.lambdas import entry
from ecs_gpu_recovery.lambdas.{name} import lambda_handler
aside = 0.0

def make_clients():
    global aside
    paused = time.process_time()
    real, entry.Session.client = entry.Session.client, lambda self, name, **options: name
    lazy = {{one._make(): one for one in gc.get_objects() if type(one).__name__ == "LazyClient"}}
    entry.Session.client = real
    aside += time.process_time() - paused
    for wanted in {clients!r}:
        lazy[wanted].meta

def set_clock(event, real=entry.CLOCK.set):
    from ecs_gpu_recovery.aws.intake import Intake
    take = Intake.take
    Intake.take = lambda self, event: (make_clients(), take(self, event))[1]
    real(event)

entry.CLOCK.set = set_clock
lambda_handler({{"source": "aws.none", "detail-type": "None", "time": "2026-11-15T03:00:00Z"}}, None)
print(time.process_time() - began - aside)
"""


def _bare(clients: tuple[str, ...]) -> str:
    return f"""
import sys, time
sys.path.insert(0, "")
began = time.process_time()
import boto3
from botocore.config import Config
session = boto3.session.Session()
limits = Config(retries={{"mode": "standard", "max_attempts": 4}}, connect_timeout=5, read_timeout=20)
for name in {clients!r}:
    session.client(name, config=limits)
print(time.process_time() - began)
"""


def _spent(program: str, folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=folder, env=_SETTINGS, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout.splitlines()[-1])


def measure() -> dict[str, float]:
    folder = build_lambda.ensure(machine())
    found: dict[str, float] = {}
    for name, clients in CLIENTS.items():
        ours, bare = _ours(name, clients), _bare(clients)
        pairs = [(_spent(ours, folder), _spent(bare, folder)) for _ in range(RUNS)]
        found[f"import_ratio_{name}"] = statistics.median(one / other for one, other in pairs)
        found[f"import_ms_{name}"] = statistics.median(one for one, _ in pairs) * 1000
    return found
