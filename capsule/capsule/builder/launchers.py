"""Launchers that run the `python` beside them, wherever their folder comes to lie.

A shebang can't be relative, and one with a long path is cut off by the kernel. So a launcher starts
as a shell script and is a Python program too: the shell reads the first lines and never returns
from `exec`; Python reads the same lines as a string.
"""

import re
from typing import Final

__all__ = ["ENTRY_POINT", "console_script", "relocated_script"]

ENTRY_POINT: Final = re.compile(
    r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)\s*:\s*"
    r"(?P<attribute>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)\s*(\[[^\]]*\])?",
    re.ASCII,
)
# `-I` keeps PYTHON* variables, the user's packages and the script's own folder out of sys.path.
_HEAD: Final = """\
#!/bin/sh
''':'
case $0 in */*) self=$0 ;; *) self=./$0 ;; esac
[ -L "$self" ] && self=$(readlink -f -- "$self")
exec "${self%/*}/python" -I "$self" "$@"
' '''
"""
_PYTHON_LINE: Final = re.compile(rb"#!python(w|3)?(?P<options>[ \t][^\r\n]*)?\r?\n")


def console_script(module: str, attribute: str) -> bytes:
    """Return a launcher that calls `module:attribute` and exits with what it returns."""
    name = attribute.partition(".")[0]
    return (
        f"{_HEAD}import sys\n\nfrom {module} import {name}\n\n"
        f'if __name__ == "__main__":\n    sys.exit({attribute}())\n'
    ).encode()


def relocated_script(content: bytes) -> bytes | None:
    """Return a wheel's `#!python` script with a relocatable head; None for any other file.

    Source: PEP 427, "Recommended installer features": rewrite `#!python`.
    """
    line = _PYTHON_LINE.match(content)
    return None if line is None else _HEAD.encode() + content[line.end() :]
