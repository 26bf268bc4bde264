"""The way into the program.

Connecting to a host takes longer than reading a command, and needs little of it: so the connections
of a staging begin here, before anything else is imported.
"""

import gc
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

__all__ = ["main", "run"]

_GARBAGE_AT: Final = 50_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, of the command line if none is given, and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] != ["stage"]:
        from capsule.cli.edge import main as command

        return command(given)
    from capsule.early import streams_for

    with streams_for(given[1:]) as early:
        from capsule.cli.edge import main as command

        return command(given, early=early)


def run() -> NoReturn:
    """Run one command as this process, and end it."""
    # Imports make many objects and no garbage: to look for it at every 700 is a tenth of a start.
    gc.set_threshold(_GARBAGE_AT)
    code = main()
    from capsule.cli.edge import end

    end(code)


if __name__ == "__main__":
    run()
