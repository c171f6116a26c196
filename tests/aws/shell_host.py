"""A host that runs the scripts of our documents in a real shell, its folders and its kernel in a test folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ecs_gpu_recovery.aws import reboot_document
from testbed.aws.documents import Documents

DOCUMENT, BUCKET = "Stack-RebootNode", "kept"


class Host:
    """`commands` stand in for those of a node. Nothing that it runs reaches this machine's own kernel."""

    def __init__(self, folder: Path, commands: Mapping[str, str] | None = None) -> None:
        self.folder, self._documents = folder, Documents()
        self._documents.put(DOCUMENT, reboot_document.content(BUCKET))
        (folder / "proc" / "sys" / "kernel" / "random").mkdir(parents=True)
        (folder / "proc" / "uptime").write_text("7 7\n")
        (folder / "bin").mkdir()
        insists = f'echo "$@" >> {folder}/insisted'
        for name, script in {"systemd-run": insists, **(commands or {})}.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / "bin" / name).chmod(0o755)
        self.boot("first")

    def boot(self, boot_id: str) -> None:
        (self.folder / "proc" / "sys" / "kernel" / "random" / "boot_id").write_text(boot_id)

    def script(self, key: str, evidence: str = "") -> str:
        """As SSM makes it from the document: the parameters, if their patterns allow them, put in as text."""
        given = reboot_document.arguments(DOCUMENT, "gpus", key, evidence)
        return self._documents.script(DOCUMENT, given).text

    def run(self, key: str, evidence: str = "") -> tuple[int, str]:
        return self.shell(self.script(key, evidence))

    def shell(self, text: str) -> tuple[int, str]:
        for line, here in {
            "\nproc=/proc\n": f"\nproc={self.folder}/proc\n",
            "\nfolder=/var/lib/gpu-recovery/": f"\nfolder={self.folder}/kept/",
        }.items():
            assert text.count(line) == 1, "the script must not touch this machine"
            text = text.replace(line, here)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        env = {"PATH": path, "TMPDIR": str(self.folder)}
        done = subprocess.run(
            ["/bin/sh", "-c", text], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.strip()
