"""Mutations of valid samples: blind ones of bytes, and ones that keep outer checks intact.

A decoder's first check (a digest, a checksum, well-formed JSON) hides all later ones from blind
mutation, so the structure-aware mutators repair it after they have changed something.
"""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from capsule_manifest.tree import TREE_HEADER

__all__ = ["Mutator", "mutate_bytes", "mutate_container", "mutate_json", "random_tree"]

Mutator = Callable[[random.Random, bytes], bytes]

_BLOCK = 512
_INTEGERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**53, 2**63, 2**64 - 1)
_STRINGS = (
    "",
    ".",
    "..",
    "/",
    "../x",
    "\0",
    "\ud800",
    "\u202e",
    "9" * 5000,
    "sha256:",
    "blake3:" + "0" * 64,
    "sha256:" + "0" * 64,
    "é",
    "é",
    "https://[",
    "http://127.0.0.1:99999999/",
)


def mutate_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Change, insert, delete, repeat or cut some bytes, one to four times."""
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 33, 512))
        match rng.randrange(7):
            case 0 if position < len(changed):
                changed[position] ^= 1 << rng.randrange(8)
            case 1:
                changed[position:position] = rng.randbytes(length)
            case 2:
                del changed[position : position + length]
            case 3:
                changed[position:position] = changed[position : position + length]
            case 4:
                del changed[position:]
            case 5:
                width = rng.choice((1, 2, 4, 8))
                value = rng.choice(_INTEGERS) % (1 << 8 * width)
                order = rng.choice(("big", "little"))
                changed[position : position + width] = value.to_bytes(width, order)  # type: ignore[arg-type]
            case _:
                other = rng.randrange(len(changed) + 1)
                changed[position : position + length] = changed[other : other + length]
    return bytes(changed)


def mutate_json(rng: random.Random, raw: bytes) -> bytes:
    """Change one to three values of a JSON document; mostly keep its canonical spelling."""
    document = [json.loads(raw)]
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(_places(document))
        match rng.randrange(5):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(_STRINGS)] = holder[key]
            case 2 if isinstance(holder, list) and holder is not document:
                holder.insert(rng.randrange(len(holder) + 1), holder[key])
            case 3 if isinstance(holder[key], str) and holder[key]:
                text = holder[key]
                cut = rng.randrange(len(text))
                holder[key] = text[:cut] + rng.choice(_STRINGS) + text[cut + rng.randrange(2) :]
            case _:
                holder[key] = _value(rng)
    spelled = json.dumps(
        document[0], ensure_ascii=rng.random() < 0.1, separators=(",", ":"), sort_keys=True
    ).encode(errors="surrogatepass")
    # Written last, because Python's own encoder can't nest so deep.
    spelled = spelled.replace(b'"@deep@"', b"[" * 50_000 + b"]" * 50_000)
    return mutate_bytes(rng, spelled) if rng.random() < 0.1 else spelled


def mutate_container(rng: random.Random, raw: bytes) -> bytes:
    """Change bytes of one header and repair its checksum, or move, repeat or drop blocks."""
    blocks = [raw[start : start + _BLOCK] for start in range(0, len(raw), _BLOCK)]
    position = rng.randrange(len(blocks))
    match rng.randrange(5):
        case 0:
            blocks.insert(rng.randrange(len(blocks)), blocks[position])
        case 1:
            del blocks[position]
        case 2:
            other = rng.randrange(len(blocks))
            blocks[position], blocks[other] = blocks[other], blocks[position]
        case _:
            headers = [i for i, block in enumerate(blocks) if block[257:262] == b"ustar"]
            position = rng.choice(headers)
            header = bytearray(mutate_bytes(rng, blocks[position]).ljust(_BLOCK, b"\0")[:_BLOCK])
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            blocks[position] = bytes(header)
    return b"".join(blocks)


def random_tree(rng: random.Random, _: bytes) -> bytes:
    """Return a tree file with right digests and lengths whose entries may be anything."""
    return TREE_HEADER + b"".join(_random_records(rng, 0))


def _random_records(rng: random.Random, level: int) -> list[bytes]:
    names = [b"a", b"a-", b"a.b", b"..", b".", b"", b"a/b", b"\xff", "ä".encode(), b"x" * 255, b"z"]
    chosen = rng.sample(names, rng.randrange(5))
    if rng.random() < 0.9:
        chosen = sorted(name for name in chosen if name in names[:3] + names[-3:])
    entries: list[bytes] = []
    below: list[bytes] = []
    for name in chosen:
        kind = rng.choice((1, 1, 2, 3, 3, 0))
        mode = rng.choice((0o644, 0o755, 0o777, 0o700, 0o4755))
        if kind == 2 and level < 70:
            records = _random_records(rng, level + 1)
            below += records
            context = "capsule tree 1 directory record"
            payload = blake3(records[0], derive_key_context=context).digest()
        elif kind == 3:
            targets = (b"a", b"../a", b"../../a", b"/", b"", b"a/../b", b"\xff", b".", b"y" * 5000)
            payload = rng.choice(targets)
        else:
            payload = struct.pack(">Q", rng.choice(_INTEGERS) % 2**64) + bytes(32)
        body = struct.pack(">BHB", kind, mode, len(name)) + name + payload
        entries.append(struct.pack(">H", len(body) % 2**16) + body)
    return [struct.pack(">I", len(entries)) + b"".join(entries), *below]


def _places(document: list[Any]) -> list[tuple[Any, Any]]:
    """Return (holder, key) of every value."""
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [document]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        for key in keys:
            places.append((holder, key))
            if isinstance(holder[key], dict | list) and holder[key]:
                waiting.append(holder[key])
    return places


def _value(rng: random.Random) -> Any:
    plain: tuple[Any, ...] = (
        None,
        True,
        False,
        -1,
        0.5,
        [],
        {},
        [{}],
        {"a": 1},
        float("inf"),
        "@deep@",
    )
    return rng.choice(plain + _INTEGERS + _STRINGS)
