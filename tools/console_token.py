"""How a token of our own console looks, for the scanner of secrets."""

from __future__ import annotations

import re

from detect_secrets.plugins.base import RegexBasedDetector


class ConsoleTokenDetector(RegexBasedDetector):
    """Tokens that `gpu-recovery console-user` makes."""

    secret_type = "Console Token"
    denylist = (re.compile(r"\bgpurec_[A-Za-z0-9_-]{43}\b"),)
