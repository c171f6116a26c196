"""What ibstat, ibv_devinfo and fi_info say about the ports between nodes, in one list.

The network is never a reason to reboot a node for its GPUs; a port that is down is told beside the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_DEVICE = re.compile(r"^\s*(?:CA\s+'([^']{1,64})'|hca_id:\s*(\S{1,64}))", re.MULTILINE)
_PORT = re.compile(r"^\s*(?:Port\s+([0-9]{1,3}):|port:\s*([0-9]{1,3}))\s*$")
_STATE = re.compile(r"^\s*state:\s*(?:PORT_)?([A-Za-z]{2,20})", re.IGNORECASE)
_PHYSICAL = re.compile(r"^\s*(?:physical state|phys_state):\s*([A-Za-z]{2,20})", re.IGNORECASE)
_PROVIDER = re.compile(r"^\s*provider:\s*(\S{1,64})", re.MULTILINE)
_DOMAIN = re.compile(r"^\s*domain:\s*(\S{1,64})", re.MULTILINE)
_NO_PROVIDER = re.compile(r"fi_getinfo(?:\(\))?:?\s*(-?[0-9]{1,4})", re.IGNORECASE)

Fact = tuple[str, str]
"""Condition in the policy, and evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Facts as the host check tells them, and one line for the report."""

    facts: tuple[Fact, ...] = ()
    summary: str = ""
    problem: str | None = None


def parse(text: str, expected: int | None = None) -> Ports:
    """Any of the three. A text without a device is no good news."""
    if _DEVICE.search(text):
        return _verbs(text, expected)
    providers = sorted(set(_PROVIDER.findall(text)))
    if providers:
        domains = len(set(_DOMAIN.findall(text)))
        summary = f"{', '.join(providers)}: {domains} domain(s)"
        return Ports(facts=tuple(_missing(domains or 1, expected)), summary=summary)
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
    known = [(port["name"], port["state"], port.get("physical", "")) for port in ports if "state" in port]
    if not known:
        return Ports(problem="devices without the state of any port")
    active, facts = judge(known, expected)
    return Ports(facts=tuple(facts), summary=f"{active} of {len(known)} port(s) active")


def judge(ports: Iterable[tuple[str, str, str]], expected: int | None) -> tuple[int, list[Fact]]:
    """How many of the ports (name, state, physical state) are active, and what is odd: one that is cabled must be."""
    active, facts = 0, []
    for name, state, physical in ports:
        if state == "ACTIVE":
            active += 1
            continue
        cabled = physical.lower() == "linkup" or bool(expected)
        told = f"{name} is {state or 'unknown'}, physically {physical or 'unknown'}"
        facts.append(("nic-port-down" if cabled else "nic-port-idle", told))
    return active, facts + _missing(active, expected)


def _missing(active: int, expected: int | None) -> list[Fact]:
    if not expected or active >= expected:
        return []
    return [("nics-missing", f"{active} active port(s), {expected} expected")]
