"""The kernel's classic BPF machine for seccomp, to ask a filter about calls without making them."""

import struct

from runtimes.local.seccomp import Instruction

__all__ = ["decide"]

_LD, _JA, _JEQ, _JGE, _JSET, _RET = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06


def decide(program: list[Instruction], architecture: int, number: int, *arguments: int) -> int:
    """Give the filter's action for one call. Arguments are 64 bits wide."""
    words = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", number if number < 1 << 31 else number - (1 << 32), architecture, 0, *words)
    accumulator, position = 0, 0
    while True:
        step = program[position]
        position += 1
        if step.code == _RET:
            return step.value
        if step.code == _LD:
            (accumulator,) = struct.unpack_from("<I", data, step.value)
        elif step.code == _JA:
            position += step.value
        else:
            holds = {
                _JEQ: accumulator == step.value,
                _JGE: accumulator >= step.value,
                _JSET: bool(accumulator & step.value),
            }[step.code]
            position += step.if_true if holds else step.if_false
