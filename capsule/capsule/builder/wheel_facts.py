"""What reading a wheel gave, as bytes: kept so that an unchanged wheel is not read again.

Made and read by the same program only, and never sent: there is no version and no tolerance.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from capsule.builder.examine import Examined
from capsule.builder.zip_stream import ZipMember
from capsule_manifest.digest import ObjectId

__all__ = ["WheelFacts", "decode_facts", "encode_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """Everything of a checked wheel but its content; `examined` lacks RECORD and signatures."""

    dist_info: str
    requires_python: str
    requires: tuple[str, ...]
    members: Mapping[str, ZipMember]
    examined: Mapping[str, Examined]


def encode_facts(facts: WheelFacts) -> bytes:
    """Return the facts as bytes."""
    members = [
        [
            item.name, item.size_bytes, item.is_executable, item.crc, item.method,
            item.stored_bytes, item.data_offset,
        ]
        for item in facts.members.values()
    ]  # fmt: skip
    examined = [
        [name, item.size_bytes, item.object.hex(), item.sha256.hex(), item.secrets]
        for name, item in facts.examined.items()
    ]
    head = [facts.dist_info, facts.requires_python, facts.requires]
    return json.dumps([head, members, examined]).encode()


def decode_facts(raw: bytes) -> WheelFacts:
    """Return the facts that `encode_facts` wrote."""
    head, members, examined = json.loads(raw)
    dist_info, requires_python, requires = head
    return WheelFacts(
        dist_info=dist_info,
        requires_python=requires_python,
        requires=tuple(requires),
        members={
            name: ZipMember(
                name=name,
                size_bytes=size_bytes,
                is_executable=is_executable,
                crc=crc,
                method=method,
                stored_bytes=stored_bytes,
                data_offset=data_offset,
            )
            for name, size_bytes, is_executable, crc, method, stored_bytes, data_offset in members
        },
        examined={
            name: Examined(
                size_bytes=size_bytes,
                object=ObjectId(bytes.fromhex(object_hex)),
                sha256=bytes.fromhex(sha256_hex),
                secrets=tuple((rule, line) for rule, line in secrets),
            )
            for name, size_bytes, object_hex, sha256_hex, secrets in examined
        },
    )
