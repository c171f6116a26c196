"""docs/settings.md: every variable and every key that can be chosen, from the code that reads them."""

from __future__ import annotations

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.setting import Setting, rows, text_of
from ecs_gpu_recovery.jobkeys import KEYS
from ecs_gpu_recovery.settings import LambdaSettings

HEAD = """\
# Settings

- [The policy](#the-policy): when a node is examined, how long is waited. The same names everywhere
- [The deployment](#the-deployment): what `cdk deploy` reads
- [The functions](#the-functions): what the deployment tells them
- [The command and the console](#the-command-and-the-console)
- [Job files](#job-files)

What a training program finds in its environment is on [a page of its own](environment.md).

## The policy

Environment variables: of `gpu-recovery up` in the embedded mode, of `cdk deploy` on AWS.

| variable | on AWS | embedded | meaning |
|---|---|---|---|
"""
DEPLOYMENT = """
## The deployment

Variables at `cdk synth` and `cdk deploy`, or values in the class `Config` in `ecs_gpu_recovery/config.py`. A variable
comes before the class. The numbers of the policy can be given in both places too: the class has `POLICY` for them.
How to use them: [the deployment guide](deployment.md#configure).

| variable | default | meaning |
|---|---|---|
"""
FUNCTIONS = """
## The functions

The stack sets these. Set them yourself only to run a handler by hand, or to let the command act without asking the
stack. The variables of the policy, and those above of tables, cluster and checks, are read too.

| variable | meaning |
|---|---|
"""
ENDPOINT = "| `AWS_ENDPOINT_URL` | boto3's own: another AWS, such as a [local one](testbed.md) |\n"
COMMAND = """
## The command and the console

| variable | meaning |
|---|---|
| `GPU_RECOVERY_BACKEND` | what `--backend` says, for every command: `local`, `aws`, or a console's address |
| `GPU_RECOVERY_STATE` | what `--state` says: the folder of the embedded control plane, `~/.gpu-recovery` if unset |
| `GPU_RECOVERY_WEBHOOK` | of `gpu-recovery up`: an http(s) address that gets each message to people as JSON |
| `GPU_RECOVERY_WEBHOOK_FORM` | `slack`, `teams` or `plain`, where the address does not tell |
| `GPU_RECOVERY_CONSOLE_URL` | the address of the console, for links in messages |
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
    lines = [HEAD]
    embedded = Policy.embedded()
    for row in rows(Policy):
        values = [with_unit(row, getattr(policy, row.attribute)) for policy in (Policy(), embedded)]
        lines.append(f"| `{row.name}` | {values[0]} | {values[1]} | {row.about} |\n")
    lines.append(DEPLOYMENT)
    for row in rows(Config):
        older = "".join(f" (older name: `{one}`)" for one in row.older)
        lines.append(f"| `{row.name}`{older} | {with_unit(row, row.default)} | {row.about} |\n")
    lines.append(FUNCTIONS)
    told = {row.name for row in rows(Config)}
    lines += [f"| `{row.name}` | {row.about} |\n" for row in rows(LambdaSettings) if row.name not in told]
    lines += [ENDPOINT, COMMAND, JOB_FILES]
    lines += [f"| `{key.name}` | {KINDS[key.kind.type]} | {key.about} |\n" for key in KEYS.values()]
    return "".join([*lines, EXAMPLE])


def with_unit(row: Setting, value: object) -> str:
    text = text_of(value)
    return f"`{text}`" + (f" {row.unit}" if row.unit else "") if text else ""
