"""Start the host program from a runtime's folder, with nothing of this machine's Python around it.

Run by the launcher as `python -I -S launch.py …`: no user site, no site-packages, no environment
variable, no current folder on the path. What is imported is the standard library and what lies in
the runtime's `site` folder.
"""

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

__all__: list[str] = []


def _main() -> int:
    # The runtime is compiled when it is staged; a start must never write into it.
    sys.dont_write_bytecode = True
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(site)
    # Imports make many objects and no garbage: to look for it is a seventh of a start.
    gc.disable()

    match sys.argv[1:]:
        case ["--root", root, "survey"]:
            from capsule_installer.quick import answer

            _collect_again()
            return answer(root)
        case ["--root", root, "receive", "--hello"]:
            from capsule_installer.greet import answer as take

            _collect_again()
            return take(root)
        case ["--root", _, "guard"]:
            from capsule_installer.guard.watch import main as guard

            return guard()
        case ["--root", root, "install" | "supervise" | "confirm" | "follow", *_]:
            from capsule_installer.quick_op import answer as work

            code = work(root, sys.argv[3:])
            if code is not None:
                return code
    from capsule_installer.cli import main

    _collect_again()
    return main()


def _collect_again() -> None:
    """Look for garbage from now on, among what is made from now on."""
    gc.freeze()
    gc.enable()


def _leave(code: int) -> NoReturn:
    """End at once, with what was said delivered.

    Python would take all modules apart first, which takes as long as a third of a start while a
    controller waits for the end. Nothing else is left to do: locks and files end with the process.
    """
    for stream in (sys.stdout, sys.stderr):
        # There is none where a caller has closed it.
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(_main())
