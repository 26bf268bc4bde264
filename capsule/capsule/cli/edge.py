"""The process edge of the controller: one place that prints failures and chooses the exit code."""

import atexit
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from capsule.cli import program
from capsule_manifest.errors import CapsuleError, ExitCode, Failed, render

if TYPE_CHECKING:
    from capsule.early import EarlyStreams

__all__ = ["end", "main"]

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_REPORT_SCHEMA = 1


def main(arguments: Sequence[str], *, early: "EarlyStreams | None" = None) -> int:
    """Run one command and return its exit code. Exits of commands are their return values.

    `early` are the streams to hosts that were begun before the command was read.
    """
    given = list(arguments)
    wants_json = "--json" in given
    try:
        result = program.main(given, prog_name="capsule", standalone_mode=False, obj=early)
    except click.exceptions.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except click.ClickException as error:
        error.show()
        if wants_json:
            _print_json({"error": "usage", "exit_code": 2, "what": error.format_message()})
        return int(ExitCode.USAGE)
    except CapsuleError as error:
        return _report(error, wants_json=wants_json)
    except BrokenPipeError:
        # The reader went away, as in `capsule inspect … | head`. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _report(_of_system(error), wants_json=wants_json)
    return result if isinstance(result, int) else int(ExitCode.DONE)


def end(code: int) -> NoReturn:
    """End this process with `code`, with what was said delivered.

    Python would take every module apart first, which takes a third as long as importing them did.
    What was registered to be done at the end is done.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            # There is none where a caller has closed it.
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except OSError as error:
        code = _report(_of_system(error), wants_json=False)
    atexit._run_exitfuncs()  # noqa: SLF001  # what os._exit would leave out has no public name
    os._exit(code)


def _report(error: CapsuleError, *, wants_json: bool) -> int:
    if wants_json:
        _print_json(error.as_record())
    click.echo(render(error), err=True)
    return int(error.exit_code)


def _print_json(fields: dict[str, str | int]) -> None:
    click.echo(json.dumps({"schema": _REPORT_SCHEMA, **fields}, indent=2, ensure_ascii=False))


def _interrupted() -> int:
    click.echo("interrupted", err=True)
    return int(ExitCode.INTERRUPTED)


def _of_system(error: OSError) -> CapsuleError:
    """Return what the operating system refused, in our words."""
    place = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    what = error.strerror or str(error)
    if error.errno in _OUT_OF_SPACE:
        return Failed("disk-full", "the disk is full", got=what, where=place)
    return Failed("file-failed", "a file can't be used", got=what, where=place)
