"""What kind of node a container instance is, and whether it is kept as a spare, as its attributes say.

A rank may only move to a node that is like its own. What is not known of an instance makes it like no other.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Attributes that the operator sets where the agent does not tell, or to set nodes apart.
MODEL, ZONE, GROUP, SPARE, DEVICES = "gpu_model", "zone", "group", "spare", "ibdev"
#: Those that the agent sets on EC2.
INSTANCE_TYPE, AVAILABILITY_ZONE = "ecs.instance-type", "ecs.availability-zone"


def kind_of(said: Mapping[str, str], host: str) -> str:
    """Launch type, GPU model or instance type, zone and group; empty while one of the first three is not known."""
    launch = "EXTERNAL" if host.startswith("mi-") else "EC2" if host else ""
    model = said.get(MODEL) or said.get(INSTANCE_TYPE, "")
    zone = said.get(AVAILABILITY_ZONE) or said.get(ZONE, "")
    if not (launch and model and zone):
        return ""
    return " ".join(filter(None, (launch, model, zone, said.get(GROUP, ""))))


def is_spare(said: Mapping[str, str]) -> bool | None:
    """None where no label says so, and the record's own word stands."""
    return {"true": True, "false": False}.get(said.get(SPARE, "").lower())


def devices(said: Mapping[str, str]) -> str:
    """The InfiniBand devices that an instance names, with commas. ECS takes none in an attribute: there are blanks."""
    return ",".join(said.get(DEVICES, "").replace(",", " ").split())
