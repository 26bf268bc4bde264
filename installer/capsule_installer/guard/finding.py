"""What the guard found: one denied try, who made it, and to where.

Everything in it comes from programs that may be hostile: it is cut and cleaned before it is kept.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from capsule_manifest.errors import Refused, clean

__all__ = ["FINDINGS_MAX", "Finding", "decode_finding", "encode_finding"]

FINDINGS_MAX: Final = 64
"""How many are kept; a program that tries for ever must not fill a receipt."""

_COMMAND_CHARACTERS_MAX: Final = 200
_FIELD_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One denied try. `pid` is the host's number, 0 where nobody could be named (level L2).

    `target` is an address or path, `name` a host name that was asked for; both may be empty.
    """

    call: str
    target: str = ""
    name: str = ""
    pid: int = 0
    executable: str = ""
    command: tuple[str, ...] = ()

    def text(self) -> str:
        """Return one line for receipts and people."""
        words = [self.call, self.target, f"name {self.name}" if self.name else ""]
        who = ""
        if self.pid:
            command = " ".join(self.command)[:_COMMAND_CHARACTERS_MAX]
            who = f", by pid {self.pid} {self.executable} [{command}]"
        return clean(" ".join(word for word in words if word) + who)


def encode_finding(finding: Finding) -> dict[str, object]:
    """Return the finding as a JSON object of bounded size."""
    command, room = [], _COMMAND_CHARACTERS_MAX
    for word in finding.command:
        if room <= 0:
            break
        command.append(word[:room])
        room -= len(word)
    return {
        **asdict(finding),
        "target": finding.target[:_FIELD_CHARACTERS_MAX],
        "name": finding.name[:_FIELD_CHARACTERS_MAX],
        "executable": finding.executable[:_FIELD_CHARACTERS_MAX],
        "command": command,
    }


def decode_finding(item: object) -> Finding:
    """Read a finding that the guard's own process wrote.

    Raises:
        Refused: `state-malformed`.
    """
    match item:
        case {
            "call": str() as call,
            "target": str() as target,
            "name": str() as name,
            "pid": int() as pid,
            "executable": str() as executable,
            "command": list() as command,
        } if _are_texts(command):
            return Finding(
                call=call,
                target=target,
                name=name,
                pid=pid,
                executable=executable,
                command=tuple(command),
            )
    raise Refused("state-malformed", "not a finding of the guard", got=json.dumps(item)[:200])


def _are_texts(items: Sequence[object]) -> bool:
    return all(isinstance(item, str) for item in items)
