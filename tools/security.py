"""Two looks at the repository before it is shown to anyone: what bandit finds in the package, and secrets in the files.

    python -m tools.security            both; exit 1 if something is found

What bandit warns of and is meant to be so stands in `MEANT`, each with its reason. An entry that is not needed any more
is an error too, so that the list stays short and true.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ecs_gpu_recovery"

#: (rule, files): why it is right there.
MEANT: dict[tuple[str, str], str] = {
    ("B101", "*"): "an assert states what must hold; nothing depends on it being run",
    ("B404", "*"): "starting processes is this project's trade",
    ("B603", "*"): "arguments are lists, never a line for a shell",
    ("B606", "ecs_gpu_recovery/local/shim.py"): "the shim becomes the task it was ordered to run",
    ("B311", "ecs_gpu_recovery/engine/runtime.py"): "how long a writer steps aside is no secret",
    ("B311", "ecs_gpu_recovery/examples/*"): "training data of an example",
    ("B311", "ecs_gpu_recovery/fleet_model/*"): "chance that can be repeated by its seed is the point",
    ("B105", "ecs_gpu_recovery/aws/*"): "an empty page token of a list, no password",
    ("B106", "ecs_gpu_recovery/aws/adopt.py"): "an empty idempotency token, no password",
    ("B106", "ecs_gpu_recovery/core/job/draft.py"): "an empty idempotency token, no password",
    ("B105", "ecs_gpu_recovery/console/access/auth.py"): "the prefix that every token begins with",
    ("B105", "ecs_gpu_recovery/control/remote_backend.py"): "names of environment variables",
    ("B105", "ecs_gpu_recovery/config.py"): "empty settings that name where a secret is kept",
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
        "ecs_gpu_recovery/local/store.py",
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
            (rule, files) for rule, files in meant if rule == finding.rule and fnmatch(finding.path, files)
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

PATTERNS = {
    "AWS access key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b",
    "Slack token or webhook": r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}|hooks\.slack\.com/services/[A-Za-z0-9/]{30,}",
    "PyPI token": r"\bpypi-[A-Za-z0-9_-]{60,}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}\b|_authToken\s*=\s*\S{8,}",
    "console token": r"\bgpurec_[A-Za-z0-9_-]{43}\b",
    "signed web token": r"\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}",
    "password in an address": r"[a-z][a-z0-9+]{2,9}://[^\s/:@\"'<>{}$]{1,40}:[^\s/:@\"'<>{}$]{6,}@[a-z0-9]",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
#: NAME = "value" where the name sounds like a secret; whether the value is one, its disorder tells.
_ASSIGNED = re.compile(
    r"(?i)[\"']?\b[\w-]*(?:secret|token|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)[\w-]*[\"']?"
    r"\s*(?:=|:|=>)\s*[\"']([A-Za-z0-9+/=_.~-]{20,})[\"']"
)
#: Bits per character; words and paths have less, random letters and digits more.
DISORDER = 3.9
#: What AWS prints in its own documentation, and letters in their order.
HARMLESS = re.compile(r"EXAMPLE|0123456789|abcdef|x{6,}|123456789012")
#: (file, kind): why it may look like a secret there.
PLANTED = {
    ("tests/console/test_secrets.py", "password in an address"): "made up, to see that it is not shown",
    ("tests/console/test_secrets.py", "private key"): "made up, to see that it is not shown",
    ("tests/console/test_security.py", "AWS access key"): "made up, to see that it is not shown",
}
LARGEST_FILE = 2 << 20


def disorder(text: str) -> float:
    """Shannon's entropy, in bits per character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


def secrets_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of everything that looks like a secret. The secret itself is not repeated."""
    for number, line in enumerate(text.splitlines(), 1):
        if HARMLESS.search(line):
            continue
        for name, pattern in _PATTERNS.items():
            if pattern.search(line):
                yield number, name
        for found in _ASSIGNED.finditer(line):
            if disorder(found[1]) >= DISORDER and re.search(r"\d", found[1]):
                yield number, "a value that looks random, under a name that sounds secret"


def shown_files(root: Path = ROOT) -> list[Path]:
    """What is tracked, and what would be if somebody said `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in told.stdout.split("\0") if name]


def secrets(paths: Iterable[Path], root: Path = ROOT) -> list[Finding]:
    found = []
    for path in paths:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST_FILE:
            continue
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        name = str(path.relative_to(root))
        for line, what in secrets_in(data.decode(errors="replace")):
            if (name, what) not in PLANTED:
                found.append(Finding(rule="secret", path=name, line=line, what=what))
    return found


def main() -> int:
    said = [*not_meant(bandit(PACKAGE), MEANT), *map(str, secrets(shown_files()))]
    for line in said:
        print(line, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
