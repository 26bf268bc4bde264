"""An interpreter of classic BPF as seccomp runs it: one call in, the action out.

Source: linux/filter.h, linux/bpf_common.h, kernel/seccomp.c (`seccomp_check_filter`).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Call", "Program", "read_program"]

_INSTRUCTION = struct.Struct("=HBBI")
_INSTRUCTIONS_MAX = 4096
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_DATA_BYTES = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One system call as a filter sees it."""

    audit: int
    number: int
    arguments: tuple[int, ...] = (0, 0, 0, 0, 0, 0)

    def data(self) -> bytes:
        """Return the `struct seccomp_data`."""
        return struct.pack("=iIQ6Q", self.number - (self.number >> 31 << 32), self.audit, 0,
                           *self.arguments)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """A program that the kernel would take."""

    code: Sequence[tuple[int, int, int, int]]

    def run(self, call: Call) -> int:
        """Return the action for a call."""
        data, accumulator, at = call.data(), 0, 0
        while True:
            operation, when_true, when_false, value = self.code[at]
            at += 1
            if operation == _RETURN:
                return value
            if operation == _LOAD:
                (accumulator,) = struct.unpack_from("=I", data, value)
            elif operation == _AND:
                accumulator &= value
            else:
                holds = accumulator == value if operation == _EQUAL else accumulator >= value
                at += when_true if holds else when_false


def read_program(raw: bytes) -> Program:
    """Read a program and check it as the kernel does: known codes, jumps inside, a last return."""
    assert len(raw) % _INSTRUCTION.size == 0
    code = list(_INSTRUCTION.iter_unpack(raw))
    assert 0 < len(code) <= _INSTRUCTIONS_MAX
    for at, instruction in enumerate(code):
        assert list(_wrong(at, instruction, len(code))) == []
    assert code[-1][0] == _RETURN
    return Program(code)


def _wrong(at: int, instruction: tuple[int, int, int, int], length: int) -> Iterator[str]:
    operation, when_true, when_false, value = instruction
    if operation not in {_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN}:
        yield f"{at}: operation {operation:#x}"
    if operation == _LOAD and (value % 4 or value >= _DATA_BYTES):
        yield f"{at}: load from {value}"
    if operation in {_EQUAL, _AT_LEAST} and at + 1 + max(when_true, when_false) >= length:
        yield f"{at}: jump out of the program"
