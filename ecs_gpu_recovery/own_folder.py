"""A folder whose content is acted upon: orders, records, pids to end, a console's sessions.

Another user who can write into it commands in our name. So it is used only where that is impossible.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from .core.errors import Refused


def own_folder(folder: Path, option: str = "--state") -> None:
    """Make it if it is not there. Refused where it is not the user's own, or where others can write or replace it.

    For root, too, a folder of another user is not its own. Who may only look is told by `doctor`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found, me = folder.stat(), os.geteuid()
    if found.st_uid != me:
        raise Refused(
            f"{folder} belongs to {_name(found.st_uid)}, and you are {_name(me)}:"
            f" choose a folder of your own with {option}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(
            f"others can write into {folder}: see that all in it is yours, then  chmod go-w {folder},"
            f" or choose another with {option}"
        )
    for parent in Path(os.path.realpath(folder)).parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise Refused(
                f"everyone can put another folder in the place of {folder}, because {parent} is open to all:"
                f" chmod +t {parent}, or choose another with {option}"
            )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
