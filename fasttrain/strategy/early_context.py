"""A GPU's context, begun beside the imports: the driver needs a second or more for it, and no Python."""

from __future__ import annotations

import contextlib
import ctypes
import threading

DRIVER = "libcuda.so.1"


def begin_context(device: int) -> threading.Thread:
    """Start a thread that makes the primary context of GPU number ``device``, the one that torch will use.

    What fails here is left to torch, which asks the driver for the same thing and says what is wrong in its own
    words; a machine without the driver has nothing to begin. Leave the process to end after the thread, as Python
    does by itself: the driver must not be taken down while it comes up.

    Source: CUDA driver API, "Primary Context Management".
    """
    thread = threading.Thread(target=_begin, args=(device,), name="begin_context")
    thread.start()
    return thread


def _begin(device: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # no driver, or one without these functions
        driver = ctypes.CDLL(DRIVER)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(handle), device) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
