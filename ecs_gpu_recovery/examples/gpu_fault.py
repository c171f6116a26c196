"""A program that really faults on an NVIDIA GPU, to see what follows: in the kernel log, the health check and the job.

    python -m ecs_gpu_recovery.examples.gpu_fault wild-write     # writes where it owns nothing: Xid 31
    python -m ecs_gpu_recovery.examples.gpu_fault assert         # a device-side assertion fails: Xid 43
    python -m ecs_gpu_recovery.examples.gpu_fault trap           # a trap instruction: Xid 43

It harms no GPU: the driver ends the program and goes on. It needs the driver and nothing else, no CUDA toolkit and no
framework, since it speaks to `libcuda` itself and brings its kernels as PTX. It exits with 1, as a training does that
hits such a fault, and with 2 where it could not be tried.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from typing import Any, NoReturn

FAULTED, NOT_TRIED = 1, 2

_HEAD = """
.version 6.4
.target sm_75
.address_size 64
"""
#: Each kernel is called `fault` and takes nothing.
KERNELS = {
    "wild-write": """
.visible .entry fault()
{
    .reg .b64 %where;
    .reg .b32 %what;
    mov.u64 %where, 0x7fff00000000;
    mov.u32 %what, 1;
    st.global.u32 [%where], %what;
    ret;
}
""",
    "assert": """
.extern .func __assertfail (.param .b64 said, .param .b64 file, .param .b32 line, .param .b64 name, .param .b64 width);
.global .align 1 .b8 said[6] = {102, 97, 108, 115, 101, 0};
.visible .entry fault()
{
    .reg .b64 %text;
    mov.u64 %text, said;
    cvta.global.u64 %text, %text;
    {
        .param .b64 a;
        .param .b64 b;
        .param .b32 c;
        .param .b64 d;
        .param .b64 e;
        st.param.b64 [a], %text;
        st.param.b64 [b], %text;
        st.param.b32 [c], 1;
        st.param.b64 [d], %text;
        st.param.b64 [e], 1;
        call.uni __assertfail, (a, b, c, d, e);
    }
    ret;
}
""",
    "trap": """
.visible .entry fault()
{
    trap;
    ret;
}
""",
}


class Driver:
    """The few calls of `libcuda` that it takes to run a kernel. A call that fails ends the program, and says why."""

    def __init__(self, gpu: int) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            not_tried(f"no NVIDIA driver here: {error}")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._must("cuInit", ctypes.c_uint(0))
        self._must("cuDeviceGet", ctypes.byref(device), ctypes.c_int(gpu))
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._must("cuCtxSetCurrent", context)

    def run(self, kernel: str) -> str | None:
        """What the driver says of the kernel's end; None if it ended well."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._must("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p((_HEAD + kernel).encode()))
        self._must("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"fault"))
        one, nothing = ctypes.c_uint(1), ctypes.c_void_p()
        shape = (one, one, one, one, one, one, ctypes.c_uint(0))
        self._must("cuLaunchKernel", function, *shape, nothing, nothing, nothing)
        code = self._call("cuCtxSynchronize")
        return None if code == 0 else self._text(code)

    def _call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._cuda, name)(*arguments))

    def _must(self, name: str, *arguments: Any) -> None:
        if code := self._call(name, *arguments):
            not_tried(f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._call("cuGetErrorString", ctypes.c_int(code), ctypes.byref(text))
        return f"{(text.value or b'unknown').decode()} ({code})"


def not_tried(why: str) -> NoReturn:
    print(f"could not be tried: {why}", file=sys.stderr)
    sys.exit(NOT_TRIED)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_fault", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("fault", choices=sorted(KERNELS))
    parser.add_argument("--gpu", type=int, default=0, help="which one, as CUDA counts them")
    options = parser.parse_args(arguments)
    said = Driver(options.gpu).run(KERNELS[options.fault])
    print(f"CUDA error: {said}" if said else "nothing happened", flush=True)
    return FAULTED if said else NOT_TRIED


if __name__ == "__main__":
    sys.exit(main())
