"""docs/settings.md: every variable and every key that can be chosen, from the code that reads them."""

from __future__ import annotations

import textwrap

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.setting import Setting, rows, text_of
from ecs_gpu_recovery.jobkeys import KEYS, JobKey
from ecs_gpu_recovery.settings import LambdaSettings

HEAD = """\
# Settings

- [The policy](#the-policy): when nodes are examined, how long is waited. For `gpu-recovery up`, or `cdk deploy`.
- [The deployment](#the-deployment): what is deployed. For `cdk deploy`, or in the class `Config`.
- [The command and the console](#the-command-and-the-console): backend, console, state folder. For `gpu-recovery`.
- [Job files](#job-files): one job. For `gpu-recovery submit --file`.
- What the training program finds: [its environment](environment.md).

## The policy

"Until" is a deadline. Where the embedded mode has another default, it stands in brackets.

| variable | default | meaning |
|---|---|---|
"""
DEPLOYMENT = """
## The deployment

Variables at `cdk synth` and `cdk deploy`, or values in the class `Config` in `ecs_gpu_recovery/config.py`, after the
variables; its `POLICY` has the numbers of the policy. Lists have commas.
How to: [the deployment guide](deployment.md#configure).

| variable | default | meaning |
|---|---|---|
"""
FUNCTIONS = """
## The functions

The stack tells them the policy and the names above, and {names}: `LambdaSettings` in `ecs_gpu_recovery/settings.py`
says what each is. Set them only to run a handler by hand, or to let the command act without asking the stack.
`AWS_ENDPOINT_URL` is another AWS, such as a [local one](testbed.md).
"""
COMMAND = """
## The command and the console

- `GPU_RECOVERY_BACKEND`: `--backend` of every command: `local`, `aws`, or a console's address
- `GPU_RECOVERY_STATE`: `--state`, the folder of the embedded control plane, `~/.gpu-recovery` if unset
- `GPU_RECOVERY_WEBHOOK`, `GPU_RECOVERY_WEBHOOK_FORM`, `GPU_RECOVERY_CONSOLE_URL`: [messages](embedded.md#messages) of
  `gpu-recovery up`
- `STACK_NAME`, `AWS_REGION`: which deployment; AWS's own variables and profiles work as usual
- `GPU_RECOVERY_CONSOLE_TOKEN`, `GPU_RECOVERY_CONSOLE_USER`, `GPU_RECOVERY_CONSOLE_PASSWORD`, `GPU_RECOVERY_CONSOLE_CA`,
  `GPU_RECOVERY_CONSOLE_INSECURE`: how you reach [a console](console.md#commands-through-a-console), and as whom
- `GPU_RECOVERY_CONSOLE_USERS`: users of `gpu-recovery console`, instead of `--users`
- `PYTHON`, `PIP_INDEX_URL`, `CHROMIUM`: which Python, package registry and browser `make` uses
"""
JOB_FILES = """
## Job files

TOML or JSON. Most keys are options of `gpu-recovery submit`, whose `--help` says what each means; what is given as an
option comes before the file. Keys that take no text say so: {options}.

Only in the file:

"""
EXAMPLE = """
For example:

```toml
name = "llm"
command = ["python", "train.py"]
any_nodes = 2
max_retries = 2

[env]
DATASET = "/data/c4"
```
"""
KINDS = {int: "number", list: "list", dict: "table", bool: "true or false"}


def page() -> str:
    lines = [HEAD]
    embedded = Policy.embedded()
    for row in rows(Policy):
        here, there = (getattr(policy, row.attribute) for policy in (Policy(), embedded))
        values = [f"`{text_of(here)}`", f"(`{text_of(there)}`)" if there != here else "", row.unit]
        lines.append(f"| `{row.name}` | {' '.join(filter(None, values))} | {row.about} |\n")
    lines.append(DEPLOYMENT)
    for row in rows(Config):
        older = "".join(f" (older name: `{one}`)" for one in row.older)
        lines.append(f"| `{row.name}`{older} | {with_unit(row, row.default)} | {row.about} |\n")
    told = {row.name for row in rows(Config)}
    names = [f"`{row.name}`" for row in rows(LambdaSettings) if row.name not in told]
    options = ", ".join(_as_option(key) for key in KEYS.values() if key.option)
    lines += [FUNCTIONS.format(names=", ".join(names)), COMMAND, JOB_FILES.format(options=options)]
    lines += [f"- `{key.name}`{_kind(key)}: {key.about}\n" for key in KEYS.values() if not key.option]
    return _wrapped("".join([*lines, EXAMPLE]))


def _wrapped(page: str) -> str:
    """With long paragraphs in lines that a terminal and a diff can show; tables and lists stay as they are."""
    return "\n".join(
        line if line.startswith(("|", "- ")) else textwrap.fill(line, 120, break_on_hyphens=False)
        for line in page.split("\n")
    )


def _as_option(key: JobKey) -> str:
    """The key, with its option where that has another name."""
    option = key.option.split()[0]
    other = "" if option == f"--{key.name.replace('_', '-')}" else f"`{option}`"
    return f"`{key.name}`{_kind(key, other)}"


def _kind(key: JobKey, other: str = "") -> str:
    said = ", ".join(filter(None, [other, KINDS.get(key.kind.type, "")]))
    return f" ({said})" if said else ""


def with_unit(row: Setting, value: object) -> str:
    text = text_of(value)
    return f"`{text}`" + (f" {row.unit}" if row.unit else "") if text else ""
