"""Every error id with its exit code and what the operator does next.

`docs/reference/errors.md` is generated from this table. A row is added with the check that raises
it, in the module of `error_rows` for the part that does; an id is never reused for another meaning.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from capsule_manifest.error_rows import builder, controller, formats, host, trust
from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

ROWS: Final[Mapping[str, tuple[ExitCode, str]]] = MappingProxyType(
    formats.ROWS | trust.ROWS | builder.ROWS | host.ROWS | controller.ROWS
)
