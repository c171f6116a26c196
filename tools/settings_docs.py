"""docs/settings.md: every variable and every key that can be chosen, from the code that reads them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from ecs_gpu_recovery.config import OLDER_NAMES, POLICY_VARIABLES, SETTINGS, Config
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.jobfile import KEYS
from ecs_gpu_recovery.local.wiring import LOCAL_POLICY

HEAD = """\
# Settings

- [The policy](#the-policy): when a node is examined, how long is waited. The same names everywhere
- [The deployment](#the-deployment): what `cdk deploy` reads
- [The functions](#the-functions): what the deployment tells them
- [The command and the console](#the-command-and-the-console)
- [Job files](#job-files)

What a training program finds in its environment is on [a page of its own](environment.md).

## The policy

Environment variables: of `gpu-recovery up` in the embedded mode, of `cdk deploy` on AWS. Times are seconds.

| variable | on AWS | embedded | meaning |
|---|---|---|---|
"""
DEPLOYMENT = """
## The deployment

Variables at `cdk synth` and `cdk deploy`, or values in the class `Config` in `ecs_gpu_recovery/config.py`. A variable
comes before the class. The numbers of the policy can be given in both places too: the class has `POLICY` for them.
How to use them: [the deployment guide](deployment.md#configure).

| variable = default | about |
|---|---|
"""
FUNCTIONS = """
## The functions

The stack sets these. Set them yourself only to run a handler by hand, or to let the command act without asking the
stack. The variables of the policy are read too.

| variable | meaning |
|---|---|
| `TASK_TABLE_NAME`, `JOB_TABLE_NAME`, `NODE_TABLE_NAME` | the tables |
| `ECS_CLUSTER_NAME` | the cluster; events of others are dropped |
| `DCGM_HEALTH_CHECK_TASK` | the task definition of the health check |
| `SNS_TOPIC_ARN` | where messages to people go |
| `DEAD_LETTER_QUEUE_URL` | where events end that nobody could handle; `gpu-recovery letters` looks there |
| `AWS_ENDPOINT_URL` | boto3's own: another AWS, such as a [local one](testbed.md) |
"""
COMMAND = """
## The command and the console

| variable | meaning |
|---|---|
| `GPU_RECOVERY_BACKEND` | what `--backend` says, for every command: `local`, `aws`, or a console's address |
| `GPU_RECOVERY_STATE` | what `--state` says: the folder of the embedded control plane, `~/.gpu-recovery` if unset |
| `GPU_RECOVERY_WEBHOOK` | of `gpu-recovery up`: an http(s) address that gets each message to people, as JSON |
| `STACK_NAME`, `AWS_REGION` | `--backend aws`: which deployment. AWS's own variables and profiles work as usual |
| `GPU_RECOVERY_CONSOLE_TOKEN` | who you are, where the backend is [a console](console.md#commands-through-a-console) |
| `GPU_RECOVERY_CONSOLE_USER`, `GPU_RECOVERY_CONSOLE_PASSWORD` | the same with a name and a password |
| `GPU_RECOVERY_CONSOLE_CA`, `GPU_RECOVERY_CONSOLE_INSECURE` | its certificate authority; 1: allow plain HTTP |
| `GPU_RECOVERY_CONSOLE_USERS` | the users of `gpu-recovery console`, instead of the file `--users` |
| `PYTHON`, `PIP_INDEX_URL`, `CHROMIUM` | `make`: which Python, which package registry, which browser for its tests |
"""
JOB_FILES = """
## Job files

TOML or JSON, for `gpu-recovery submit --file`. Options of the command come before them.

| key | type | meaning |
|---|---|---|
"""
EXAMPLE = """
For example, `gpu-recovery submit --file job.toml` with

```toml
name = "llm"
command = ["python", "train.py"]
any_nodes = 2
max_retries = 2

[env]
DATASET = "/data/c4"
```
"""
KINDS = {str: "text", int: "number", list: "list", dict: "table", bool: "true or false"}


def page() -> str:
    rows = [HEAD]
    for variable, field, _, meaning in POLICY_VARIABLES:
        values = [_shown(getattr(policy, field)) for policy in (Policy(), LOCAL_POLICY)]
        rows.append(f"| `{variable}` | {values[0]} | {values[1]} | {meaning} |\n")
    rows.append(DEPLOYMENT)
    for names, about in _deployment():
        rows.append(f"| {'<br>'.join(map(_with_default, names))} | {about} |\n")
    rows += [FUNCTIONS, COMMAND, JOB_FILES]
    rows += [f"| `{key}` | {KINDS[kind]} | {meaning} |\n" for key, (kind, meaning) in KEYS.items()]
    return "".join([*rows, EXAMPLE])


def _shown(value: object) -> str:
    if hasattr(value, "total_seconds"):
        return f"{value.total_seconds():g}"
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value)))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_default(name: str) -> str:
    older = "".join(f" (older name: `{one}`)" for one in OLDER_NAMES.get(name, ()))
    value = _shown(getattr(Config, name))
    return f"`{name}`" + (f" = `{value}`" if value else "") + older


def _deployment() -> Iterator[tuple[list[str], str]]:
    """The settings of the class, with the comment that speaks for them."""
    about: list[str] = []
    names: list[str] = []
    for line in inspect.getsource(Config).splitlines():
        if comment := re.fullmatch(r" {4}# (.*)", line):
            if names:
                yield names, " ".join(about)
                about, names = [], []
            about.append(comment[1])
        elif (setting := re.match(r" {4}([A-Z][A-Z0-9_]+) = ", line)) and setting[1] in SETTINGS:
            names.append(setting[1])
