"""Questions: a controller has a host record its fence and say what the host knows of one op.

A question is signed like an order, because recording a fence shuts every older controller out. It
names the order that the asker itself has sent last, if any: the host then knows whether an order
under this op id could still come and be accepted.

Source: design, section 11 ("fence and query"); `docs/adr/0180-a-question-is-signed.md`.
"""

import re
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.fields import root_object

__all__ = ["QUESTION_TYPE", "Question", "decode_question", "encode_question"]

QUESTION_SCHEMA: Final = "capsule-question/1"
QUESTION_TYPE: Final = "application/vnd.capsule.question.v1+json"

_LIMITS = Limits(size_bytes_max=16 * 1024, depth_max=2, values_max=32)
_OP_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What became of `op_id`, asked under `fence`.

    `nonce`, `boot_id` and `valid_ms` are those of the order that the asker sent under this fence;
    empty and 0 if it sent none, so that only older controllers can have.
    """

    op_id: str
    node: str
    route: str
    fence: int
    nonce: str
    boot_id: str
    valid_ms: int


def encode_question(question: Question) -> bytes:
    """Return the canonical bytes that a controller signs as `QUESTION_TYPE`."""
    return encode(
        {
            "schema": QUESTION_SCHEMA,
            "op_id": question.op_id,
            "node": question.node,
            "route": question.route,
            "fence": question.fence,
            "nonce": question.nonce,
            "boot_id": question.boot_id,
            "valid_ms": question.valid_ms,
        }
    )


def decode_question(raw: bytes, *, where: str = "question") -> Question:
    """Read a question strictly.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    document = root_object(
        decode(raw, limits=_LIMITS, where=where), schema=QUESTION_SCHEMA, name=where
    )
    question = Question(
        op_id=document.matching("op_id", _OP_ID),
        node=document.text("node"),
        route=document.sha256("route"),
        fence=document.integer("fence"),
        nonce=document.text("nonce", empty=True),
        boot_id=document.text("boot_id", empty=True),
        valid_ms=document.integer("valid_ms", most=86_400_000),
    )
    document.end()
    return question
