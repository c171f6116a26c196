"""The GPUs of a node: simulated ones with faults to inject, and real ones counted through NVML.

A simulated GPU is an entry in gpus.json, its kernel log is the file kmsg, and its faults act on the tasks
through their shims. So any training script is hit the way a real GPU would hit it: it dies with a CUDA
error, freezes, or slows down, and the evidence lies where a health check looks for it.

The shim imports this module: keep the imports at the top few.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from .files import Json, now_iso, private, read_json, write_json

FAULTS = {
    "xid": "the driver reports an Xid of your choice (default 79); most codes kill the tasks on that GPU",
    "ecc": "a double-bit memory error (Xid 48); a reset or reboot cures it",
    "off-bus": "the GPU falls off the PCIe bus (Xid 79) and is gone until a reboot",
    "permanent": "too many memory errors (Xid 48): no reboot helps, the GPU must be replaced",
    "hang": "the GPU's firmware stops answering (Xid 119) and the tasks freeze without dying",
    "driver-hang": "like hang, and questions to the driver never return either",
    "stuck": "like hang, and no signal ends the tasks: a process hangs in the driver until a reboot",
    "freeze": "the task stands still without dying (SIGSTOP); the GPU is healthy",
    "slow": "the GPU is throttled and its tasks run at a fraction of their speed",
    "app-xid": "the program touched memory it does not own (Xid 31): it dies, the GPU is healthy",
    "oom": "the task is killed for using too much memory",
    "kill": "the task is killed (SIGKILL), as a person or a script may do; nothing is broken",
    "check-broken": "from now on the health check cannot run on this node",
    "no-cure": "from now on a reboot cures nothing: every fault is there again",
    "no-return": "the next reboot of this node never comes back",
    "leaving": "the node will be taken away in 20 seconds, and says so; then it loses its power",
    "lost": "the node loses its power now, with everything on it, until it is powered on",
}

STANDING = {"check-broken": "check_broken", "no-cure": "no_cure", "no-return": "no_return"}
"""Faults that are a standing order for the node, and their key in faults.json."""

_FAULT_XIDS = {
    "xid": 79,
    "ecc": 48,
    "permanent": 48,
    "off-bus": 79,
    "hang": 119,
    "driver-hang": 119,
    "stuck": 119,
    "app-xid": 31,
}

_KEPT_HITS = 20


class NvmlUnavailable(RuntimeError):
    """Real GPUs were asked for, and the NVIDIA driver or its Python binding does not answer."""


class Blow(NamedTuple):
    """What a fault does to a task: `fatal`, `oom`, `kill`, `stuck`, `hang` or `slow`."""

    kind: str
    line: str = ""
    speed: float = 1.0


class _Xid(NamedTuple):
    text: str
    recovery: str = "none"
    cuda: str = "unspecified launch failure"
    hits_task: bool = True


_ECC = "uncorrectable ECC error encountered"
_ACCESS = "an illegal memory access was encountered"
_XIDS = {
    13: _Xid("Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address", cuda=_ACCESS),
    31: _Xid(
        "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f3a_5c200000. "
        "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        cuda=_ACCESS,
    ),
    43: _Xid("Ch 00000008, engmask 00000101"),
    45: _Xid("Ch 00000008"),
    48: _Xid("DBE (double bit error) detected in the framebuffer at partition 1", "gpu_reset", _ECC),
    62: _Xid("2a01(3c40) 00000000 00000000", "gpu_reset"),
    63: _Xid("Row Remapper: a row is marked for remapping, reset the GPU to activate it", hits_task=False),
    64: _Xid("Row Remapper: the remapping of a row failed", "gpu_reset", _ECC),
    74: _Xid(
        "NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
        "gpu_reset",
        "uncorrectable NVLink error detected during the execution",
    ),
    79: _Xid("GPU has fallen off the bus.", "node_reboot"),
    92: _Xid("High single-bit ECC error rate", hits_task=False),
    94: _Xid("Contained: SM (0x1). RST: No, D-RST: No", cuda=_ECC),
    95: _Xid("Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No", "gpu_reset", _ECC),
    119: _Xid(
        "Timeout after 45s of waiting for RPC response from GPU{index} GSP! "
        "Expected function 76 (GSP_RM_CONTROL) (0x20801813 0x4c).",
        "gpu_reset",
    ),
    120: _Xid("GSP task exception: task timeout, pc 0x0000000000e4a2c8", "gpu_reset"),
}
_UNKNOWN_XID = _Xid("Ch 00000008")

_HEALTHY: Json = {
    "present": True,
    "recovery_action": "none",
    "ecc_uncorrectable": 0,
    "remap_pending": False,
    "remap_failure": False,
    "sram_threshold_exceeded": False,
    "throttled": False,
    "temperature_c": 38,
    "power_w": 112,
    "memory_used_mib": 4,
    "memory_total_mib": 81559,
    "utilization": 0,
    "fault": None,
}


def simulated(node: str, count: int) -> Json:
    """The content of gpus.json for a healthy node. Uuids come from node and place, and last."""
    import uuid

    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}",
            "name": "Simulated H100 80GB",
            "bus_id": f"0000:{index + 1:02x}:00",
            **_HEALTHY,
        }
        for index in range(count)
    ]
    return {"gpus": gpus, "driver_hung": False}


def count_present(node_dir: str) -> int:
    """How many simulated GPUs the node sees; it asks once per boot, as a real agent does."""
    state = read_json(os.path.join(node_dir, "gpus.json"))
    return sum(1 for gpu in (state or {"gpus": []})["gpus"] if gpu["present"])


def count_real() -> int:
    """How many GPUs the NVIDIA driver shows; each is asked who it is. NVML is loaded only here."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise NvmlUnavailable("real GPUs need the package nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(f"the NVIDIA driver does not answer: {error}") from error
    try:
        number = int(pynvml.nvmlDeviceGetCount())
        for index in range(number):
            pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        return number
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(f"the NVIDIA driver stopped answering: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def blow_on_task(state: Json | None, faults: Json | None, spec: Json) -> Blow | None:
    """What the faults of a node do to one task now, the worst first. Only training feels them.

    Faults that stay (in gpus.json) hit every task of the node, also one that starts later. Faults that leave
    the GPU healthy are hits with a number, and hit the tasks that had been ordered before them.
    """
    if spec.get("kind") != "train":
        return None
    gpus = (state or {"gpus": []})["gpus"]
    prefix = f"[rank{spec.get('rank', 0)}]: RuntimeError: "
    for hit in (faults or {}).get("hits", []):
        if hit["seq"] > spec.get("hit_seq", 0):
            if hit["kind"] in ("oom", "kill"):
                return Blow(hit["kind"])
            if hit["kind"] == "freeze":
                return Blow("hang")
            return Blow("fatal", f"{prefix}CUDA error: {_xid(hit['xid']).cuda}")
    kinds = {gpu["fault"]["kind"]: gpu for gpu in gpus if gpu["fault"]}
    for kind in ("off-bus", "permanent", "ecc", "xid"):
        if kind in kinds:
            fault = kinds[kind]["fault"]
            if fault["settled"] and not any(gpu["present"] for gpu in gpus):
                return Blow("fatal", f"{prefix}No CUDA GPUs are available")
            return Blow("fatal", f"{prefix}CUDA error: {_xid(fault['xid']).cuda}")
    for kind in ("stuck", "hang"):
        if kind in kinds:
            return Blow(kind)
    if "slow" in kinds:
        return Blow("slow", speed=float(kinds["slow"]["fault"]["speed"]))
    return None


def _xid(code: int) -> _Xid:
    return _XIDS.get(code, _UNKNOWN_XID)


def hit_seq(node_dir: str) -> int:
    """The number of the latest hit: a task ordered now is spared the earlier ones."""
    hits = (read_json(os.path.join(node_dir, "faults.json")) or {}).get("hits", [])
    return int(hits[-1]["seq"]) if hits else 0


def inject(node_dir: str, fault: str, gpu: int, xid: int | None, speed: float, pid: int | None) -> None:
    """Break something. The caller holds the node's lock. `pid` is the process the kernel log blames."""
    if fault in STANDING:
        _set_standing(node_dir, STANDING[fault], True)
        return
    if fault in ("freeze", "oom", "kill"):
        if fault == "oom":
            victim = f"process {pid} (python)" if pid else "a process"
            log_kernel(node_dir, f"Memory cgroup out of memory: Killed {victim}")
        _add_hit(node_dir, fault, gpu, None)
        return
    path = os.path.join(node_dir, "gpus.json")
    state = read_json(path)
    if state is None:
        raise ValueError(f"fault {fault!r} needs simulated GPUs; this node has real ones")
    chosen = next((entry for entry in state["gpus"] if entry["index"] == gpu), None)
    if chosen is None:
        raise ValueError(f"there is no GPU {gpu} on this node")
    code = _FAULT_XIDS.get(fault)
    if fault == "xid" and xid is not None:
        code = xid
    if code is not None:
        _log_xid(node_dir, chosen, code, pid)
    if fault == "app-xid" or (fault == "xid" and _xid(code or 0).recovery == "none"):
        _hit_by_xid(node_dir, chosen, code or 0)
    else:
        _break(state, chosen, fault, code, speed)
    write_json(path, state)


def _hit_by_xid(node_dir: str, chosen: Json, code: int) -> None:
    """An Xid after which the GPU itself works on: at most its present users die of it."""
    if code in (63, 94):
        chosen["remap_pending"] = True
        chosen["ecc_uncorrectable"] += 1
    if _xid(code).hits_task:
        _add_hit(node_dir, "xid", chosen["index"], code)


def _break(state: Json, chosen: Json, fault: str, code: int | None, speed: float) -> None:
    """A fault that stays until a reboot cures it, or for ever."""
    kind = "hang" if fault == "driver-hang" else fault
    chosen["fault"] = {"kind": kind, "xid": code, "at": now_iso(), "speed": speed, "settled": False}
    if fault == "slow":
        chosen.update(throttled=True, temperature_c=91)
        return
    chosen["recovery_action"] = _xid(code or 0).recovery
    if fault == "off-bus":
        chosen["present"] = False
    if fault == "permanent":
        chosen["sram_threshold_exceeded"] = True
    if code in (48, 95):
        chosen["ecc_uncorrectable"] += 1
    if code == 64:
        chosen["remap_failure"] = True
    if fault == "driver-hang":
        state["driver_hung"] = True


def _add_hit(node_dir: str, kind: str, gpu: int, xid: int | None) -> None:
    path = os.path.join(node_dir, "faults.json")
    faults = read_json(path) or {}
    hits = faults.get("hits", [])
    seq = (hits[-1]["seq"] if hits else 0) + 1
    hit = {"seq": seq, "kind": kind, "gpu": gpu, "xid": xid, "at": now_iso()}
    write_json(path, {**faults, "hits": [*hits, hit][-_KEPT_HITS:]})


def _set_standing(node_dir: str, key: str, value: bool) -> None:
    path = os.path.join(node_dir, "faults.json")
    write_json(path, {**(read_json(path) or {}), key: value})


def forget_no_return(node_dir: str) -> None:
    """The order was for one reboot only; once the node is powered on by hand it is spent."""
    if (read_json(os.path.join(node_dir, "faults.json")) or {}).get("no_return"):
        _set_standing(node_dir, "no_return", False)


def never_returns(node_dir: str) -> bool:
    """Whether the next reboot is ordered to fail."""
    return bool((read_json(os.path.join(node_dir, "faults.json")) or {}).get("no_return"))


def boot(node_dir: str, old_boot_id: str | None, new_boot_id: str) -> None:
    """What a boot does to GPUs and kernel log. Safe to repeat when its caller died half-way.

    The kernel log starts afresh, as it does on a real machine, so that a check after the boot cannot find
    evidence from before it. The old one is kept beside it under the name of its boot.
    """
    kmsg = os.path.join(node_dir, "kmsg")
    kept = f"{kmsg}.{old_boot_id}"
    if old_boot_id and os.path.exists(kmsg) and not os.path.exists(kept):
        os.rename(kmsg, kept)
    log_kernel(node_dir, f"booted, boot id {new_boot_id}")
    path = os.path.join(node_dir, "gpus.json")
    state = read_json(path)
    if state is None:
        return
    stubborn = bool((read_json(os.path.join(node_dir, "faults.json")) or {}).get("no_cure"))
    for gpu in state["gpus"]:
        fault = gpu["fault"]
        if fault and (stubborn or fault["kind"] == "permanent"):
            fault["settled"] = True
            if fault["xid"] is not None:
                _log_xid(node_dir, gpu, fault["xid"], None)
        else:
            gpu.update(_HEALTHY)
    state["driver_hung"] = state["driver_hung"] and stubborn
    write_json(path, state)


def clear(node_dir: str) -> None:
    """Take every fault back at once: healthy GPUs, no standing orders. Hits stay counted."""
    path = os.path.join(node_dir, "gpus.json")
    state = read_json(path)
    if state is not None:
        for gpu in state["gpus"]:
            gpu.update(_HEALTHY)
        write_json(path, {**state, "driver_hung": False})
    faults = read_json(os.path.join(node_dir, "faults.json")) or {}
    write_json(os.path.join(node_dir, "faults.json"), {"hits": faults.get("hits", [])})


def _log_xid(node_dir: str, gpu: Json, code: int, pid: int | None) -> None:
    culprit = f"pid={pid}, name=python" if pid else "pid='<unknown>', name=<unknown>"
    text = _xid(code).text.replace("{index}", str(gpu["index"]))
    log_kernel(node_dir, f"NVRM: Xid (PCI:{gpu['bus_id']}): {code}, {culprit}, {text}")


def log_kernel(node_dir: str, message: str) -> None:
    """One line into the kernel log, in one write."""
    with open(os.path.join(node_dir, "kmsg"), "a", encoding="utf-8", opener=private) as file:
        file.write(f"{now_iso()} kernel: {message}\n")
