"""Fork detached, deaf children until that fails; print how many there are, then stay."""

import os
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
count = 0
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
    except OSError:
        break
    count += 1
print(count, flush=True)
signal.pause()
