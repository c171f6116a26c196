"""What ibstat, ibv_devinfo and fi_info say about the ports between nodes, in one list.

The network is never a reason to reboot a node for its GPUs; a port that is down is told beside the verdict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DEVICE = re.compile(r"^\s*(?:CA\s+'([^']{1,64})'|hca_id:\s*(\S{1,64}))", re.MULTILINE)
_PORT = re.compile(r"^\s*(?:Port\s+([0-9]{1,3}):|port:\s*([0-9]{1,3}))\s*$")
_STATE = re.compile(r"^\s*state:\s*(?:PORT_)?([A-Za-z]{2,20})", re.IGNORECASE)
_PHYSICAL = re.compile(r"^\s*(?:physical state|phys_state):\s*([A-Za-z]{2,20})", re.IGNORECASE)
_PROVIDER = re.compile(r"^\s*provider:\s*(\S{1,64})", re.MULTILINE)
_DOMAIN = re.compile(r"^\s*domain:\s*(\S{1,64})", re.MULTILINE)
_NO_PROVIDER = re.compile(r"fi_getinfo(?:\(\))?:?\s*(-?[0-9]{1,4})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Facts as the host check tells them, and one line for the report."""

    facts: tuple[tuple[str, str], ...] = ()
    summary: str = ""
    problem: str | None = None


def parse(text: str, expected: int | None = None) -> Ports:
    """Any of the three. A text without a device is no good news."""
    if _DEVICE.search(text):
        return _verbs(text, expected)
    providers = sorted(set(_PROVIDER.findall(text)))
    if providers:
        domains = len(set(_DOMAIN.findall(text)))
        return _counted(domains or 1, expected, f"{', '.join(providers)}: {domains} domain(s)", [])
    if found := _NO_PROVIDER.search(text):
        return Ports(
            facts=(("nics-missing", f"libfabric finds no provider (fi_getinfo {found[1]})"),),
            summary="no provider",
        )
    return Ports(problem="this is not the output of ibstat, ibv_devinfo or fi_info")


def _verbs(text: str, expected: int | None) -> Ports:
    ports: list[dict[str, str]] = []
    device = ""
    for line in text.splitlines():
        if found := _DEVICE.match(line):
            device = found[1] or found[2]
        elif found := _PORT.match(line):
            ports.append({"name": f"{device}/{found[1] or found[2]}"})
        elif ports and (found := _PHYSICAL.match(line)):
            ports[-1].setdefault("physical", found[1])
        elif ports and (found := _STATE.match(line)):
            ports[-1].setdefault("state", found[1].upper())
    known = [port for port in ports if "state" in port]
    if not known:
        return Ports(problem="devices without the state of any port")
    facts = []
    for port in known:
        if port["state"] != "ACTIVE":
            cabled = port.get("physical", "").lower() == "linkup" or bool(expected)
            told = f"{port['name']} is {port['state']}, physically {port.get('physical', 'unknown')}"
            facts.append(("nic-port-down" if cabled else "nic-port-idle", told))
    active = sum(port["state"] == "ACTIVE" for port in known)
    return _counted(active, expected, f"{active} of {len(known)} port(s) active", facts)


def _counted(active: int, expected: int | None, summary: str, facts: list[tuple[str, str]]) -> Ports:
    if expected and active < expected:
        facts.append(("nics-missing", f"{active} active port(s), {expected} expected"))
    return Ports(facts=tuple(facts), summary=summary)
