"""Show what a host has: installed, staged, held, open ops with their deadlines, last receipts.

Reads only and takes no lock, so that it answers while an op runs and on a full disk.
"""

from collections.abc import Mapping

import click

from capsule_installer.host.host import Host
from capsule_installer.op.effects import Effects
from capsule_installer.op.hold import hold_reason
from capsule_installer.op.installed import read_installed_marker
from capsule_installer.op.journal import read_journal
from capsule_installer.op.op_folder import OpFile, OpFolder, Result, list_ops
from capsule_installer.op.real import real_effects
from capsule_installer.op.supervisor import load_installation
from capsule_manifest.canonical import JsonValue
from capsule_manifest.errors import CapsuleError, ExitCode
from capsule_manifest.records import Receipt

__all__ = ["command", "host_status"]

_RECEIPTS = 5


@click.command(name="status", epilog="Example: capsule status")
@click.option("--json", "as_json", is_flag=True, help="Answer in one framed record.")
@click.pass_obj
def command(host: Host, *, as_json: bool) -> int:
    """Show what is installed, staged, held and open."""
    status = host_status(real_effects(host.disk, host.layout))
    if as_json:
        host.reporter.record("status", status)
    else:
        for line in _lines(status):
            host.reporter.text(line)
    return int(ExitCode.DONE if status["serving"] else ExitCode.NOT_SERVING)


def host_status(effects: Effects) -> dict[str, JsonValue]:
    """Return the state of a host; `serving` is what the host itself can say.

    Raises:
        Refused: `state-malformed`, `json-*`, `document-*`, `signature-*`.
    """
    state, layout = effects.state, effects.layout
    ops = [op for op in list_ops(effects.disk, layout) if op.result() in {None, Result.FAILED}]
    hold = hold_reason(effects.disk, layout)
    marker = read_installed_marker(effects.disk, layout, effects.signer.public)
    units: dict[str, JsonValue] = {}
    if marker is not None:
        for unit in load_installation(effects, marker).specs:
            seen = effects.services.state(unit.name)
            units[unit.name] = {
                "active": seen.active,
                "pid": seen.pid,
                "restarts": seen.restarts,
                "result": seen.result,
            }
    is_active = all(isinstance(unit, Mapping) and unit["active"] for unit in units.values())
    return {
        "node": effects.node,
        "current": state.generation_of(layout.current),
        "previous": state.generation_of(layout.previous),
        "marker": "absent" if marker is None else marker.generation,
        "staged": state.staged_generations(),
        "counter_floor": state.counter_floor(),
        "fence": state.fence(),
        "hold": hold,
        "units": units,
        "ops": [_op(effects, op) for op in ops],
        "receipts": [_receipt(receipt) for receipt in _last_receipts(effects)],
        "serving": marker is not None and hold is None and not ops and is_active,
    }


def _op(effects: Effects, op: OpFolder) -> dict[str, JsonValue]:
    lines = read_journal(op)
    now_ms = effects.clock.boot_ms()
    deadlines: dict[str, JsonValue] = {}
    for line in lines:
        match line:
            case {"name": str(name), "state": "deadline", "at_ms": int(at_ms)}:
                deadlines[name] = at_ms - now_ms
    steps = [line for line in lines if line.get("state") != "deadline"]
    outcome, result = op.outcome(), op.result()
    return {
        "op_id": op.op_id,
        "begun": op.has(OpFile.INTENT),
        "stopping": op.has(OpFile.STOPPING),
        "proved": op.has(OpFile.PROOF),
        "outcome": None if outcome is None else outcome.result,
        "result": None if result is None else str(result),
        "step": f"{steps[-1]['name']} {steps[-1]['state']}" if steps else "",
        "deadlines_ms": deadlines,
        "reason": op.reason(),
    }


def _last_receipts(effects: Effects) -> list[Receipt]:
    try:
        return [item.receipt for item in effects.chain.read_all()[-_RECEIPTS:]]
    except CapsuleError:
        # A damaged receipt is for `receipts verify` to name; the rest is needed most just then.
        return []


def _receipt(receipt: Receipt) -> dict[str, JsonValue]:
    return {
        "sequence": receipt.sequence,
        "kind": receipt.kind,
        "result": receipt.result,
        "source": receipt.source,
        "target": receipt.target,
        "op_id": receipt.op_id,
        "reason": receipt.reason,
    }


def _lines(status: Mapping[str, JsonValue]) -> list[str]:
    staged = status["staged"]
    assert isinstance(staged, list)
    lines = [
        f"node      {status['node']}{'' if status['serving'] else '  NOT SERVING'}",
        f"current   {status['current']}",
        f"previous  {status['previous']}",
        f"staged    {', '.join(str(name) for name in staged) or 'none'}",
    ]
    if status["hold"] is not None:
        lines.append(f"hold      {status['hold']}")
    if status["marker"] != status["current"]:
        lines.append(f"marker    {status['marker']}: disagrees with current")
    for name, unit in _items(status["units"]):
        lines.append(f"unit      {name} {'active' if unit['active'] else unit['result'] or 'down'}")
    for op in _maps(status["ops"]):
        deadlines = ", ".join(f"{name} in {left} ms" for name, left in _pairs(op["deadlines_ms"]))
        lines.append(f"op        {op['op_id']} {op['result'] or 'open'} {op['step']} {deadlines}")
    lines += [
        f"receipt   {receipt['sequence']} {receipt['kind']} {receipt['result']} "
        f"{receipt['source']} -> {receipt['target']} {receipt['reason']}".rstrip()
        for receipt in _maps(status["receipts"])
    ]
    return lines


def _maps(value: JsonValue) -> list[Mapping[str, JsonValue]]:
    assert isinstance(value, list)
    return [item for item in value if isinstance(item, Mapping)]


def _items(value: JsonValue) -> list[tuple[str, Mapping[str, JsonValue]]]:
    return [(name, item) for name, item in _pairs(value) if isinstance(item, Mapping)]


def _pairs(value: JsonValue) -> list[tuple[str, JsonValue]]:
    assert isinstance(value, Mapping)
    return sorted(value.items())
