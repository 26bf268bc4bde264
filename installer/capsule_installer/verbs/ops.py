"""The verbs of an op on the command line: order, supervise, follow, confirm, rollback, boot."""

from typing import Final

import click

from capsule_installer.host.host import Host
from capsule_installer.op.boot import recover
from capsule_installer.op.follow import follow_op, op_exit_code
from capsule_installer.op.op_folder import Result
from capsule_installer.op.op_work import (
    begin_op,
    confirm_proof,
    host_effects,
    supervise_op,
    take_order,
    tell_op,
)
from capsule_installer.op.rollback import rollback_order
from capsule_installer.quick_op import greet_and_take
from capsule_manifest.errors import ExitCode

__all__ = ["boot", "confirm", "follow", "install", "rollback", "supervise_verb"]

_MARGIN_MS: Final = 60_000


@click.command(name="install", epilog="Example: capsule install < order.json")
@click.option("--hello", "greets", is_flag=True, help="Say a hello before the order is read.")
@click.option(
    "--follow", "follow_s", type=click.IntRange(0), help="Then tell of the op for SECONDS.",
    metavar="SECONDS",
)  # fmt: skip
@click.pass_obj
def install(host: Host, *, greets: bool, follow_s: int | None) -> int:
    """Take a signed order on standard input and carry it out in a process of its own."""
    follow_ms = None if follow_s is None else follow_s * 1000
    return (greet_and_take if greets else take_order)(host, follow_ms=follow_ms)


@click.command(name="supervise", hidden=True)
@click.argument("op_id")
@click.pass_obj
def supervise_verb(host: Host, op_id: str) -> int:
    """Carry out an accepted op; started by install, never by hand."""
    return supervise_op(host, op_id)


@click.command(name="follow", epilog="Example: capsule follow OP_ID --timeout 30")
@click.argument("op_id")
@click.option("--timeout", "timeout_s", default=600, show_default=True, help="Seconds.")
@click.pass_obj
def follow(host: Host, op_id: str, timeout_s: int) -> int:
    """Tell an op's steps, proof, outcome and receipt as records until it has ended."""
    return tell_op(host, host_effects(host), op_id, timeout_s * 1000)


@click.command(name="confirm", epilog="Example: capsule confirm < confirm.json")
@click.pass_obj
def confirm(host: Host) -> int:
    """Commit the op that the signed confirm on standard input names."""
    return confirm_proof(host)


@click.command(name="rollback", epilog="Example: capsule rollback")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records.")
@click.pass_obj
def rollback(host: Host, *, as_json: bool) -> int:
    """Return to the previous generation and tell how it goes."""
    effects = host_effects(host)
    envelope = rollback_order(effects, op_id=host.machine.nonce(), nonce=host.machine.nonce())
    op = begin_op(host, effects, envelope)
    limit_ms = _MARGIN_MS + 600_000
    if as_json:
        return tell_op(host, effects, op.op_id, limit_ms)
    for name, fields in follow_op(effects, op.op_id, timeout_ms=limit_ms):
        if name == "step" and fields["state"] != "started":
            took = f" ({fields['took_ms']} ms)" if "took_ms" in fields else ""
            why = f": {fields['why']}" if "why" in fields else ""
            host.reporter.text(f"{fields['name']} {fields['state']}{took}{why}")
    result = op.result()
    assert result is not None, "a followed op has ended"
    current = effects.state.generation_of(effects.layout.current)
    host.reporter.text(f"rollback {result}: {current} is installed")
    return int(op_exit_code(op, result))


@click.command(name="boot", epilog="Example: capsule boot")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records.")
@click.pass_obj
def boot(host: Host, *, as_json: bool) -> int:
    """Restore what was open when the host went down, then start a folder host's services."""
    results = recover(host_effects(host))
    if as_json:
        host.reporter.record(
            "recovered", {"ops": {op_id: str(result) for op_id, result in results.items()}}
        )
    else:
        lines = [f"{op_id}: {result}" for op_id, result in results.items()]
        host.reporter.text("\n".join(lines) or "nothing was open")
    failed = Result.FAILED in results.values()
    return int(ExitCode.RESTORE_FAILED if failed else ExitCode.DONE)
