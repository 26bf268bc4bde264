"""Names and paths of content: what may be written below a component, and how it is shown.

A component is unpacked by a privileged program from bytes that an attacker may have chosen, so a
path is legal only if joining it to a folder can't leave that folder on any file system, and only if
it can be printed, logged and sorted without surprise. Names are text: a name that isn't UTF-8 is
refused where content comes in, and never reaches a tree.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from capsule_manifest.errors import Refused

__all__ = [
    "NAME_BYTES_MAX",
    "PATH_BYTES_MAX",
    "PATH_LEVELS_MAX",
    "case_collisions",
    "check_link",
    "check_name",
    "check_path",
    "escape",
]

NAME_BYTES_MAX: Final = 255
"""NAME_MAX of every Linux file system that a host may use."""

PATH_BYTES_MAX: Final = 4096
"""One more than the longest path that open(2) takes, which counts the final NUL."""

PATH_LEVELS_MAX: Final = 64

_SHOWN_CHARACTERS_MAX = 200
_DOTS = frozenset({".", ".."})
# Almost every name matches this, and one match is far cheaper than the checks one by one.
_PLAIN_NAME = re.compile(r"[ -.0-~]{1,255}")
# The same for whole paths, of which most have no hidden name and fit into one name's length.
_PLAIN_PATH = re.compile(r"(?!\.)[ -.0-~]+(?:/(?!\.)[ -.0-~]+)*")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_FIRST_SMUGGLED_BYTE = 0xDC80
_LAST_SMUGGLED_BYTE = 0xDCFF


def check_name(name: str, where: str) -> None:
    """Refuse `name` unless it is one path segment of at most 255 bytes.

    Raises:
        Refused: `path-invalid` for an empty name, `.`, `..`, a slash, a control character (NUL
            among them), a lone surrogate (bytes that were not UTF-8), or a name too long.
    """
    if _PLAIN_NAME.fullmatch(name) and name not in _DOTS:
        return
    if name == "" or name in _DOTS:
        raise _invalid("a name stands for a directory itself", "a name of its own", name, where)
    if "/" in name:
        raise _invalid("a name holds a slash", "one path segment", name, where)
    if _UNPRINTABLE.search(name):
        raise _invalid(
            "a name holds a control character or is not UTF-8", "printable UTF-8", name, where
        )
    size_bytes = len(name.encode())
    if size_bytes > NAME_BYTES_MAX:
        raise _invalid(
            f"a name has {size_bytes} bytes", f"at most {NAME_BYTES_MAX} bytes", name, where
        )


def check_path(path: str, where: str) -> None:
    """Refuse `path` unless it is relative, `/`-joined and made of legal names.

    At most 4096 bytes and 64 levels.

    Raises:
        Refused: `path-invalid`.
    """
    is_short = len(path) <= NAME_BYTES_MAX and path.count("/") < PATH_LEVELS_MAX
    if is_short and _PLAIN_PATH.fullmatch(path):
        return
    if path.startswith("/"):
        raise _invalid("a path is absolute", "a path relative to its component", path, where)
    names = path.split("/")
    for name in names:
        check_name(name, where)
    if len(names) > PATH_LEVELS_MAX:
        raise _invalid(
            f"a path has {len(names)} levels", f"at most {PATH_LEVELS_MAX} levels", path, where
        )
    size_bytes = len(path.encode())
    if size_bytes > PATH_BYTES_MAX:
        raise _invalid(
            f"a path has {size_bytes} bytes", f"at most {PATH_BYTES_MAX} bytes", path, where
        )


def check_link(path: str, target: str, where: str) -> None:
    """Refuse the link at `path` unless its target lies inside the component.

    `..` is legal only at the start of a target. A name before it could itself be a link, and then
    the kernel and a lexical reading disagree about where `..` leads: `a/b/up -> ../..` followed by
    `out -> a/b/up/../secret` would leave the component with two links that look harmless alone.
    With leading `..` only, each step up leaves a real directory, so lexical and real agree.

    A target may be missing or name another link; both stay inside for the same reason.

    Raises:
        Refused: `path-invalid` for a target that can't be written, `link-escapes` for one that
            is absolute, leads outside, or holds `..` after a name.

    Source: path_resolution(7).
    """
    if target == "" or len(target.encode(errors="surrogatepass")) >= PATH_BYTES_MAX:
        raise _invalid(
            "a link target is empty or too long", f"1 to {PATH_BYTES_MAX - 1} bytes", target, where
        )
    if target.startswith("/"):
        raise _escapes("a link is absolute", path, target, where)
    levels_up = 0
    has_name = False
    for name in target.split("/"):
        if name in {"", "."}:
            continue
        if name == "..":
            if has_name:
                raise _escapes("a link target holds '..' after a name", path, target, where)
            levels_up += 1
        else:
            check_name(name, where)
            has_name = True
    if levels_up > path.count("/"):
        raise _escapes("a link leads out of its component", path, target, where)


def escape(text: str | bytes) -> str:
    r"""Return a printable form of a name for messages, at most 200 characters and a `…`.

    Two different names of up to that length never look the same: a backslash is doubled, what is
    not printable (direction overrides too) is written as an escape, and bytes that are not UTF-8
    as `\xNN`.
    """
    shown = text.decode(errors="surrogateescape") if isinstance(text, bytes) else text
    if len(shown) <= _SHOWN_CHARACTERS_MAX and shown.isprintable() and "\\" not in shown:
        return shown
    escaped = "".join(_escape_character(c) for c in shown[: _SHOWN_CHARACTERS_MAX + 1])
    if len(escaped) > _SHOWN_CHARACTERS_MAX:
        return escaped[:_SHOWN_CHARACTERS_MAX] + "…"
    return escaped


def case_collisions(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of paths that are one file where case or normalisation does not count.

    Directory prefixes are compared too: `Lib/a` and `lib/b` give `("Lib", "lib")`. Only the level
    that differs is reported, not everything below it. Pairs are sorted, first spelling first.

    Source: Unicode Standard, section 3.13, canonical caseless matching (D145).
    """
    spellings: set[str] = set()
    for path in paths:
        prefix = path
        while prefix and prefix not in spellings:
            spellings.add(prefix)
            prefix = prefix.rpartition("/")[0]
    first: dict[str, str] = {}
    collisions: list[tuple[str, str]] = []
    for path in sorted(spellings):
        known = first.setdefault(_fold(path), path)
        if known != path and known.rpartition("/")[2] != path.rpartition("/")[2]:
            collisions.append((known, path))
    return collisions


def _fold(path: str) -> str:
    if path.isascii():
        return path.lower()
    folded = unicodedata.normalize("NFC", path).casefold()
    return unicodedata.normalize("NFC", folded)


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if _FIRST_SMUGGLED_BYTE <= code <= _LAST_SMUGGLED_BYTE:
        # The form in which Python carries a byte that was not UTF-8 (PEP 383).
        return f"\\x{code - 0xDC00:02x}"
    return ascii(character)[1:-1]


def _invalid(what: str, expected: str, got: str, where: str) -> Refused:
    return Refused("path-invalid", what, expected=expected, got=escape(got), where=where)


def _escapes(what: str, path: str, target: str, where: str) -> Refused:
    return Refused(
        "link-escapes",
        what,
        expected="a relative target inside the component, '..' only at its start",
        got=f"{escape(path)} -> {escape(target)}",
        where=where,
    )
