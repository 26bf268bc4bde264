"""The verbs of an op on the command line: order, supervise, follow, confirm, rollback, boot."""

import sys
from collections.abc import Sequence
from typing import Final

import click

from capsule_installer.accept import accept_order, start_supervisor
from capsule_installer.boot import recover
from capsule_installer.effects import Effects
from capsule_installer.follow import EXIT_CODES, follow_op, stored_result
from capsule_installer.host import Host
from capsule_installer.op_folder import OpFolder, Result
from capsule_installer.outcome import confirm_op
from capsule_installer.real import place_rescue, real_effects
from capsule_installer.rollback import rollback_order
from capsule_installer.supervisor import supervise
from capsule_manifest.envelope import RECORD_LIMITS, Envelope, decode_record
from capsule_manifest.errors import ExitCode, Failed

__all__ = ["boot", "confirm", "follow", "install", "rollback", "supervise_verb"]

_MARGIN_MS: Final = 60_000


@click.command(name="install", epilog="Example: capsule install < order.json")
@click.pass_obj
def install(host: Host) -> int:
    """Take a signed order on standard input and carry it out in a process of its own."""
    effects = _effects(host)
    op = _begin(host, effects, _read_record("order"))
    known = stored_result(effects, op)
    if known is not None:
        host.reporter.record("result", known)
        return int(EXIT_CODES[op.result() or Result.REFUSED])
    host.reporter.record("accepted", {"op_id": op.op_id})
    return int(ExitCode.DONE)


@click.command(name="supervise", hidden=True)
@click.argument("op_id")
@click.pass_obj
def supervise_verb(host: Host, op_id: str) -> int:
    """Carry out an accepted op; started by install, never by hand."""
    result = supervise(_effects(host), op_id)
    return int(ExitCode.DONE if result is None else EXIT_CODES[result])


@click.command(name="follow", epilog="Example: capsule follow OP_ID --timeout 30")
@click.argument("op_id")
@click.option("--timeout", "timeout_s", default=600, show_default=True, help="Seconds.")
@click.pass_obj
def follow(host: Host, op_id: str, timeout_s: int) -> int:
    """Tell an op's steps, proof, outcome and receipt as records until it has ended."""
    effects = _effects(host)
    return _follow(host, effects, op_id, timeout_s * 1000)


@click.command(name="confirm", epilog="Example: capsule confirm < confirm.json")
@click.pass_obj
def confirm(host: Host) -> int:
    """Commit the op that the signed confirm on standard input names."""
    confirmed = confirm_op(_effects(host), _read_record("confirm"))
    host.reporter.record("confirmed", {"op_id": confirmed.op_id})
    return int(ExitCode.DONE)


@click.command(name="rollback", epilog="Example: capsule rollback")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records.")
@click.pass_obj
def rollback(host: Host, *, as_json: bool) -> int:
    """Return to the previous generation and tell how it goes."""
    effects = _effects(host)
    envelope = rollback_order(effects, op_id=host.machine.nonce(), nonce=host.machine.nonce())
    op = _begin(host, effects, envelope)
    limit_ms = _MARGIN_MS + 600_000
    if as_json:
        return _follow(host, effects, op.op_id, limit_ms)
    for name, fields in follow_op(effects, op.op_id, timeout_ms=limit_ms):
        if name == "step" and fields["state"] != "started":
            took = f" ({fields['took_ms']} ms)" if "took_ms" in fields else ""
            why = f": {fields['why']}" if "why" in fields else ""
            host.reporter.text(f"{fields['name']} {fields['state']}{took}{why}")
    result = op.result()
    assert result is not None, "a followed op has ended"
    current = effects.state.generation_of(effects.layout.current)
    host.reporter.text(f"rollback {result}: {current} is installed")
    return int(EXIT_CODES[result])


@click.command(name="boot", epilog="Example: capsule boot")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records.")
@click.pass_obj
def boot(host: Host, *, as_json: bool) -> int:
    """Restore what was open when the host went down, then start a folder host's services."""
    results = recover(_effects(host))
    if as_json:
        host.reporter.record(
            "recovered", {"ops": {op_id: str(result) for op_id, result in results.items()}}
        )
    else:
        lines = [f"{op_id}: {result}" for op_id, result in results.items()]
        host.reporter.text("\n".join(lines) or "nothing was open")
    failed = Result.FAILED in results.values()
    return int(ExitCode.RESTORE_FAILED if failed else ExitCode.DONE)


def _effects(host: Host) -> Effects:
    host.prepare()
    return real_effects(host.disk, host.layout)


def _begin(host: Host, effects: Effects, envelope: Envelope) -> OpFolder:
    place_rescue(host.disk, host.layout)
    op = accept_order(effects, envelope)
    start_supervisor(effects, op, _program(host))
    return op


def _program(host: Host) -> Sequence[str]:
    """Return the argv that starts this very program again, whatever `current` says by then."""
    given = len(sys.argv) - 1
    how = sys.orig_argv[1 : len(sys.orig_argv) - given]
    return [sys.executable, *how, "--root", host.layout.root or "/"]


def _read_record(what: str) -> Envelope:
    raw = sys.stdin.buffer.read(RECORD_LIMITS.size_bytes_max + 1)
    return decode_record(raw, where=what)


def _follow(host: Host, effects: Effects, op_id: str, timeout_ms: int) -> int:
    for name, fields in follow_op(effects, op_id, timeout_ms=timeout_ms):
        host.reporter.record(name, fields)
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=op_id)
    result = op.result()
    if result is None:
        raise Failed("op-not-finished", "the op has not ended yet", got=op_id, retryable=True)
    return int(EXIT_CODES[result])
