"""What the host program says: records to whoever asked, text to a person, logs to nobody's parser.

Standard output carries framed records only, or, for a person's verb without `--json`, text only.
"""

import sys
from collections.abc import Mapping
from typing import BinaryIO, TextIO

from capsule_manifest.canonical import JsonValue
from capsule_manifest.errors import CapsuleError, clean, render
from capsule_manifest.wire import encode_wire_record

__all__ = ["Reporter", "standard_reporter"]


class Reporter:
    """Write one program's output, flushed record by record."""

    def __init__(self, output: BinaryIO, log: TextIO) -> None:
        self._output = output
        self._log = log

    def record(self, name: str, fields: Mapping[str, JsonValue]) -> None:
        """Write one framed record."""
        assert "record" not in fields
        self._write(encode_wire_record({"record": name, **fields}))

    def text(self, line: str) -> None:
        """Write one line for a person."""
        self._write((line + "\n").encode("utf-8", "backslashreplace"))

    def log(self, line: str) -> None:
        """Write one line to standard error."""
        self._log.write(clean(line) + "\n")
        self._log.flush()

    def error(self, error: CapsuleError) -> None:
        """Report how the program ended: a record for a program, words for a person's log."""
        self.record("error", error.as_record())
        self._log.write(render(error) + "\n")
        self._log.flush()

    def _write(self, data: bytes) -> None:
        self._output.write(data)
        self._output.flush()


def standard_reporter() -> Reporter:
    """Return the reporter of this process's standard output and error."""
    return Reporter(sys.stdout.buffer, sys.stderr)
