"""The on-host program as a component: where a runtime lies and which one this is."""

import re
from typing import Final

from capsule_installer.layout import Layout
from capsule_manifest.digest import ObjectId

__all__ = ["running_runtime", "runtime_name"]

_ID_DIGITS: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{8}")


def runtime_name(tree: ObjectId) -> str:
    """Return the name of the folder of a runtime, eight hex digits of its tree root."""
    return tree.hex()[:_ID_DIGITS]


def running_runtime(layout: Layout) -> str | None:
    """Return which runtime of this host runs now; None when the program came another way."""
    folder, _, rest = __file__.removeprefix(f"{layout.runtimes}/").partition("/")
    return folder if rest and _NAME.fullmatch(folder) else None
