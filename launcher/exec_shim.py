"""Become another program, tied to the life of the one that started it.

Run as a file by a bare interpreter (`python -I -S exec_shim.py PARENT_PID DEATH_SIGNAL UID PROGRAM ARGS...`), never
imported: the parent-death signal must be set in the child between fork and exec, and Python code run there by
`preexec_fn` can deadlock in a process that has threads. UID -1 keeps the user.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Drop to the user, ask for the death signal, then exec. Exits 127 when the program cannot be started."""
    parent_pid, death_signal, uid = (int(value) for value in arguments[:3])
    program = arguments[3:]
    if uid != -1:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    # After the change of user, which clears it.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal) != 0:
        sys.exit(f"cannot set the parent-death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:
        # The parent died before the signal was armed, so it will never come.
        sys.exit("the launcher is gone")
    # The launcher holds some back while it starts a program.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python ignores these, and an ignored signal stays ignored over exec.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program[0], program)  # noqa: S606 -- that is its purpose
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
