"""Take every inotify instance there is and print how many; with an argument, keep them until killed."""

import ctypes
import signal
import sys

libc = ctypes.CDLL(None)
taken = 0
while libc.inotify_init1(0) >= 0:
    taken += 1
print(taken, flush=True)
if sys.argv[1:]:
    signal.pause()
