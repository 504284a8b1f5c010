"""Remove the System V objects of `leave_traces.py`."""

import ctypes

KEY, IPC_RMID = 0x5AD31, 0

libc = ctypes.CDLL(None)
libc.shmctl(libc.shmget(KEY, 1, 0), IPC_RMID, 0)
libc.msgctl(libc.msgget(KEY, 0), IPC_RMID, 0)
