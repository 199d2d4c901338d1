"""As watching.py, by libsystemd's own event loop (systemd 254), which any of systemd's programs has: `watching`, and `asked` each time."""

import ctypes

library = ctypes.CDLL("libsystemd.so.0")
event, source = ctypes.c_void_p(), ctypes.c_void_p()
HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@HANDLER
def asked(*_):
    print("asked", flush=True)
    return 0


def done(result):
    if result < 0:
        raise OSError(-result, "libsystemd")


done(library.sd_event_new(ctypes.byref(event)))
done(library.sd_event_add_memory_pressure(event, ctypes.byref(source), asked, None))
print("watching", flush=True)
done(library.sd_event_loop(event))
