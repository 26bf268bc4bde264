"""What a resolver hands to the assembler: the entries of one component, with a way to read them.

A resolver has checked what its own ecosystem promises (a commit, a RECORD, a pinned digest). The
assembler checks what a tree promises, hashes the content and writes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from capsule.builder.examine import Examined
from capsule_manifest.tree_entry import EntryKind

__all__ = ["ComponentInput", "External", "InputEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEntry:
    """One path of a component. A file has `size_bytes` and `open`, a link has `target`.

    `open` may be called more than once and returns the same bytes each time; the caller closes.
    `examined` is what is known of these bytes already, from whoever read them for another reason.
    """

    path: str
    kind: EntryKind
    mode: int
    size_bytes: int = 0
    target: str | None = None
    open: Callable[[], BinaryIO] | None = None
    examined: Examined | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """What another ecosystem calls this content.

    `type` is "wheel", "git-commit" or "url"; `digest` is `sha256:<hex>` or `sha1:<hex>`.
    """

    type: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentInput:
    """One component, resolved. `platforms` is empty when it fits all of the release."""

    name: str
    kind: str
    platforms: tuple[str, ...]
    entries: tuple[InputEntry, ...]
    external: tuple[External, ...]
