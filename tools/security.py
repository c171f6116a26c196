"""Two looks at the repository before it is shown to anyone: bandit on the package, detect-secrets on every file.

    python -m tools.security            both; exit 1 if something is found

What is found and is meant to be so stands in `MEANT` and `PLANTED`, each with its reason. An entry that is not needed
any more is an error too, so that the lists stay short and true.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from detect_secrets.core.scan import scan_file
from detect_secrets.settings import transient_settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ecs_gpu_recovery"

#: (rule, files): why it is right there.
MEANT: dict[tuple[str, str], str] = {
    ("B101", "*"): "an assert states what must hold; nothing depends on it being run",
    ("B404", "*"): "starting processes is this project's trade",
    ("B603", "*"): "arguments are lists, never a line for a shell",
    ("B606", "ecs_gpu_recovery/local/shim.py"): "the shim becomes the task it was ordered to run",
    ("B311", "ecs_gpu_recovery/engine/records.py"): "how long a writer steps aside is no secret",
    ("B311", "ecs_gpu_recovery/examples/*"): "training data of an example",
    ("B311", "ecs_gpu_recovery/fleet_model/*"): "chance that can be repeated by its seed is the point",
    ("B106", "ecs_gpu_recovery/aws/adopt.py"): "an empty idempotency token, no password",
    ("B106", "ecs_gpu_recovery/core/job/draft.py"): "an empty idempotency token, no password",
    ("B105", "ecs_gpu_recovery/masks.py"): "an idempotency token that is left out of what people see",
    ("B105", "ecs_gpu_recovery/console/access/auth.py"): "the prefix that every token begins with",
    ("B105", "ecs_gpu_recovery/control/remote_backend.py"): "names of environment variables",
    (
        "B108",
        "ecs_gpu_recovery/control/aws_definitions.py",
    ): "the /tmp of a container, which nothing here writes to",
    ("B104", "ecs_gpu_recovery/infra/console.py"): "inside its container, behind the load balancer's group",
    (
        "B108",
        "ecs_gpu_recovery/health/check.py",
    ): "a folder whose free space is looked at; nothing is written there",
    ("B310", "ecs_gpu_recovery/local/notify.py"): "the address was checked to be http or https",
    (
        "B310",
        "ecs_gpu_recovery/console/access/load_balancer.py",
    ): "the address is made here and begins with https",
    (
        "B314",
        "ecs_gpu_recovery/health/sources/nvsmi.py",
    ): "XML that nvidia-smi wrote; Python's expat expands no external entity",
    (
        "B405",
        "ecs_gpu_recovery/health/sources/nvsmi.py",
    ): "XML that nvidia-smi wrote; Python's expat expands no external entity",
    (
        "B608",
        "ecs_gpu_recovery/local/*",
    ): "columns and question marks are put together; values are bound",
    ("B608", "ecs_gpu_recovery/console/*"): "names from a fixed list are put together; values are bound",
    (
        "B704",
        "ecs_gpu_recovery/console/pages/svg.py",
    ): "every text in the drawing is escaped where it is put in",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to look at."""

    rule: str
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule} {self.what}"


# -- bandit ------------------------------------------------------------------------------------------------


def bandit(*paths: str, root: Path = ROOT) -> list[Finding]:
    """Everything it finds, without any exception."""
    command = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "--format", "json", *paths]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if told.returncode not in (0, 1):
        raise SystemExit(f"bandit failed: {told.stderr}")
    found = json.loads(told.stdout)
    broken = [Finding(rule="error", path=e["filename"], line=0, what=e["reason"]) for e in found["errors"]]
    return broken + [
        Finding(
            rule=one["test_id"],
            path=one["filename"].removeprefix("./"),
            line=one["line_number"],
            what=one["issue_text"],
        )
        for one in found["results"]
    ]


def not_meant(findings: Iterable[Finding], meant: dict[tuple[str, str], str]) -> list[str]:
    """What no exception covers, and exceptions that cover nothing."""
    used: set[tuple[str, str]] = set()
    said = []
    for finding in findings:
        covering = [
            (rule, files)
            for rule, files in meant
            if fnmatch(finding.rule, rule) and fnmatch(finding.path, files)
        ]
        used.update(covering)
        if not covering:
            said.append(str(finding))
    idle = [
        f"{rule} in {files} is excused and does not occur"
        for rule, files in meant
        if (rule, files) not in used
    ]
    return said + idle


# -- secrets -----------------------------------------------------------------------------------------------

#: What detect-secrets looks for: keys and tokens by their form, and quoted text that is too disordered to be words.
SCANNER = {
    "plugins_used": [
        *({"name": f"{name}Detector"} for name in ("AWSKey", "BasicAuth", "GitHubToken", "JwtToken", "Npm")),
        *({"name": f"{name}Detector"} for name in ("OpenAI", "PrivateKey", "PypiToken", "Slack")),
        {"name": "Base64HighEntropyString", "limit": 4.5},
        {"name": "ConsoleTokenDetector", "path": f"file://{ROOT / 'tools' / 'console_token.py'}"},
    ],
    "filters_used": [
        {"path": f"detect_secrets.filters.heuristic.{name}"}
        for name in ("is_non_text_file", "is_sequential_string", "is_templated_secret", "is_lock_file")
    ],
}
#: (kind, files): why it may look like a secret there.
PLANTED: dict[tuple[str, str], str] = {
    ("*", "tests/build/test_security.py"): "made up, to see that they are found",
    ("*", "tests/console/test_secrets.py"): "made up, to see that they are not shown",
    ("AWS Access Key", "tests/cli/test_aws_wire.py"): "the one of AWS's own documentation",
    ("Basic Auth Credentials", "tests/cli/test_remote.py"): "made up, to see that it is refused",
}


def shown_files(root: Path = ROOT) -> list[Path]:
    """What is tracked, and what would be after `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in told.stdout.split("\0") if name]


def secrets(paths: Iterable[Path], root: Path = ROOT) -> list[Finding]:
    """Everything that looks like one. The secret itself is not repeated."""
    with transient_settings(SCANNER):
        return [
            Finding(
                rule=one.type, path=str(path.relative_to(root)), line=one.line_number, what="in the clear"
            )
            for path in paths
            if path.is_file() and not path.is_symlink()
            for one in scan_file(str(path))
        ]


def main() -> int:
    said = [*not_meant(bandit(PACKAGE), MEANT), *not_meant(secrets(shown_files()), PLANTED)]
    for line in said:
        print(line, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
