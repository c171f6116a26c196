"""`python -m ecs_gpu_recovery.health`.

Python ends with exit code 1 when an import fails, and 1 means "reboot this node".
So even the import is guarded: a program that cannot start has tested nothing, and says 3.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from ecs_gpu_recovery.health.main import run
    except Exception as error:  # noqa: BLE001 (whatever it is, nothing was tested)
        print(f"gpu-health could not start: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)
    sys.exit(run())
