"""Every decoder of `capsule_manifest` with valid samples and mutations that get deep into it."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import capsule_manifest
from capsule.builder.nix.narinfo import decode_narinfo, verify_narinfo
from capsule.keyless.trusted_root import PinnedRoot
from capsule.keyless.verifier import SigstoreVerifier
from capsule_manifest import (
    canonical,
    digest,
    envelope,
    orders,
    pack,
    packing,
    policy,
    policy_update,
    questions,
    records,
    release,
    repairs,
    route,
    signers,
    statements,
    survey,
    tree,
    wire,
)
from capsule_manifest.container import ContainerReader
from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.envelope import IN_TOTO
from capsule_manifest.keys import public_key
from capsule_manifest.policy import Identity
from support import documents
from support.formats import (
    make_pack,
    sample_container,
    sample_packing,
    sample_tree,
    zstd_frame,
)
from support.mutation import (
    Mutator,
    mutate_bytes,
    mutate_container,
    mutate_json,
    random_tree,
)
from support.nars import CacheKey, Link, Node, Program, StorePath, nar, node_of, store_path_name
from support.sigstore_instance import ISSUER, SUBJECT

__all__ = ["Decoder", "all_decoders", "public_decoder_names"]

_TEXT = b"the same words again and again; " * 400
_WHERE = "sample"
_KEYLESS = Path(__file__).parents[1] / "golden" / "keyless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """One decoder. `covers` names what it calls; `encode` is given where a value has one form."""

    covers: tuple[str, ...]
    samples: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    encode: Callable[..., bytes] | None = None
    mutators: tuple[Mutator, ...] = (mutate_bytes,)

    @property
    def name(self) -> str:
        return self.covers[0]


def public_decoder_names() -> set[str]:
    """Return `module.name` of everything public that by its name turns bytes into values."""
    names = set()
    for module_info in pkgutil.iter_modules(capsule_manifest.__path__):
        module = importlib.import_module(f"capsule_manifest.{module_info.name}")
        for name in module.__all__:
            is_decoder = name.startswith(("decode", "read_", "parse_")) or name.endswith("Reader")
            if is_decoder and getattr(module, name).__module__ == module.__name__:
                names.add(f"{module_info.name}.{name}")
    return names


def all_decoders() -> tuple[Decoder, ...]:
    """Return every decoder with its samples."""
    return (*_content_formats(), *_documents(), *_signed(), *_framing(), *_keyless(), *_nix())


def _content_formats() -> list[Decoder]:
    sample = sample_packing()[0]
    packs = make_pack([_TEXT, bytes(range(256)) * 8, b"x" * 9000])[1]
    return [
        Decoder(
            covers=("tree.decode_tree",),
            samples=(tree.encode_tree(sample_tree()), tree.encode_tree(tree.build_tree([]))),
            decode=lambda raw: tree.decode_tree(raw, root=None),
            encode=tree.encode_tree,
            mutators=(mutate_bytes, random_tree),
        ),
        Decoder(
            covers=("pack.decode_frame_table",),
            samples=(pack.encode_frame_table(packs.frames),),
            decode=pack.decode_frame_table,
            encode=pack.encode_frame_table,
        ),
        Decoder(
            # Described as it is, so that the digest of the stored bytes never ends the attempt.
            covers=("pack.decode_frame",),
            samples=tuple(pack.encode_frame(_TEXT, level=level)[0] for level in (1, 6, 19)),
            decode=lambda raw: pack.decode_frame(raw, zstd_frame(raw, _TEXT)),
        ),
        Decoder(
            covers=("pack.decode_frame as raw",),
            samples=(_TEXT,),
            decode=lambda raw: pack.decode_frame(raw, replace(zstd_frame(raw, _TEXT), codec="raw")),
        ),
        Decoder(
            covers=("packing.decode_packing",),
            samples=(packing.encode_packing(sample),),
            decode=packing.decode_packing,
            encode=packing.encode_packing,
            mutators=(mutate_json, mutate_bytes),
        ),
        Decoder(
            covers=("container.ContainerReader",),
            samples=(sample_container(),),
            decode=_read_container,
            mutators=(mutate_container, mutate_bytes),
        ),
    ]


def _policies() -> list[tuple[str, bytes, Callable[..., object], Callable[..., bytes]]]:
    make = documents
    return [
        (
            "policy.decode_policy",
            policy.encode_policy(make.make_policy()),
            policy.decode_policy,
            policy.encode_policy,
        ),
        (
            "policy.decode_policy in full",
            policy.encode_policy(make.make_full_policy()),
            policy.decode_policy,
            policy.encode_policy,
        ),
        (
            "policy_update.decode_policy_update",
            policy_update.encode_policy_update(
                [
                    envelope.sign(
                        policy.encode_policy(replace(make.make_policy(), version=version)),
                        payload_type=policy.POLICY_TYPE,
                        signer=make.TRUST_KEY,
                    )
                    for version in (2, 3)
                ]
            ),
            policy_update.decode_policy_update,
            policy_update.encode_policy_update,
        ),
    ]


def _requests() -> list[tuple[str, bytes, Callable[..., object], Callable[..., bytes]]]:
    """What a controller asks besides orders; only the shape is read, so any digest will do."""
    digest_text = sha256_text(b"sample")
    question = questions.Question(
        op_id="1" * 32, node="n1", route=digest_text, fence=3, nonce="n", boot_id="b", valid_ms=1000
    )
    repair = repairs.Repair(
        op_id="1" * 32, node="n1", node_key="key", route=digest_text, fence=3,
        generation="1-0123abcd", capsule=CapsuleId(digest_text), installed_by="2" * 32,
    )  # fmt: skip
    return [
        (
            "questions.decode_question",
            questions.encode_question(question),
            questions.decode_question,
            questions.encode_question,
        ),
        (
            "repairs.decode_repair",
            repairs.encode_repair(repair),
            repairs.decode_repair,
            repairs.encode_repair,
        ),
    ]


def _surveys() -> list[tuple[str, bytes, Callable[..., object], Callable[..., bytes]]]:
    whole, full = documents.make_survey(), documents.make_full_survey()
    return [
        (name, survey.encode_survey(sample), survey.decode_survey, survey.encode_survey)
        for name, sample in (
            ("survey.decode_survey", whole), ("survey.decode_survey in full", full)
        )
    ]  # fmt: skip


def _documents() -> list[Decoder]:
    make = documents
    both = (mutate_json, mutate_bytes)
    pairs: list[tuple[str, bytes, Callable[..., object], Callable[..., bytes]]] = [
        (
            "release.decode_release",
            release.encode_release(make.make_release()),
            release.decode_release,
            release.encode_release,
        ),
        *_policies(),
        (
            "route.decode_route",
            route.encode_route(make.make_route()),
            route.decode_route,
            route.encode_route,
        ),
        (
            "orders.decode_order",
            orders.encode_order(make.make_order()),
            orders.decode_order,
            orders.encode_order,
        ),
        (
            "orders.decode_confirm",
            orders.encode_confirm(make.make_confirm()),
            orders.decode_confirm,
            orders.encode_confirm,
        ),
        (
            "records.decode_marker",
            records.encode_marker(make.make_marker()),
            records.decode_marker,
            records.encode_marker,
        ),
        (
            "records.decode_proof",
            records.encode_proof(make.make_proof()),
            records.decode_proof,
            records.encode_proof,
        ),
        (
            "records.decode_outcome",
            records.encode_outcome(make.make_outcome()),
            records.decode_outcome,
            records.encode_outcome,
        ),
        (
            "records.decode_receipt",
            records.encode_receipt(make.make_receipt()),
            records.decode_receipt,
            records.encode_receipt,
        ),
        *_requests(),
        *_surveys(),
        (
            "canonical.decode",
            release.encode_release(make.make_release()),
            canonical.decode,
            canonical.encode,
        ),
    ]
    found = [
        Decoder(covers=(name,), samples=(raw,), decode=read, encode=write, mutators=both)
        for name, raw, read, write in pairs
    ]
    found.append(
        Decoder(
            covers=("canonical.decode_foreign",),
            samples=(b' {"a": [1, "x", null, true], "b": {"c": -5}}\n',),
            decode=canonical.decode_foreign,
            mutators=both,
        )
    )
    return found


def _signed() -> list[Decoder]:
    manifest = release.encode_release(documents.make_release())
    bundle = documents.release_bundle(manifest, documents.RELEASE_KEY)
    claim = envelope.decode_bundle(bundle, where=_WHERE)
    assert claim is not None
    capsule = CapsuleId(sha256_text(manifest))
    packing_claim = statements.packing_statement(b"packing", capsule)
    record = envelope.encode_record(
        envelope.sign(b"{}", payload_type=IN_TOTO, signer=documents.NODE_KEY)
    )
    both = (mutate_json, mutate_bytes)
    return [
        Decoder(
            covers=("signers.read_signature",),
            samples=(bundle,),
            decode=lambda raw: signers.read_signature(
                documents.make_policy(), "release-a", raw, None
            ),
            mutators=(mutate_json, mutate_bytes),
        ),
        Decoder(
            covers=("envelope.decode_bundle",),
            samples=(bundle,),
            decode=lambda raw: envelope.decode_bundle(raw, where=_WHERE),
            mutators=both,
        ),
        Decoder(
            covers=("envelope.decode_record",),
            samples=(record,),
            decode=lambda raw: envelope.decode_record(raw, where=_WHERE),
            encode=envelope.encode_record,
            mutators=both,
        ),
        Decoder(
            covers=("envelope.Envelope.verify",),
            samples=(bundle,),
            decode=_verify_bundle,
            mutators=both,
        ),
        Decoder(
            covers=("statements.read_release_statement",),
            samples=(claim.payload,),
            decode=lambda raw: statements.read_release_statement(raw, where=_WHERE),
            mutators=both,
        ),
        Decoder(
            covers=("statements.read_packing_statement",),
            samples=(packing_claim,),
            decode=lambda raw: statements.read_packing_statement(raw, where=_WHERE),
            mutators=both,
        ),
        Decoder(
            covers=("statements.read_bootstrap_statement",),
            samples=(statements.bootstrap_statement(b"index", capsule),),
            decode=lambda raw: statements.read_bootstrap_statement(raw, where=_WHERE),
            mutators=both,
        ),
        Decoder(
            covers=("keys.public_key",),
            samples=(documents.NODE_KEY.public.spki,),
            decode=lambda raw: public_key(raw, _WHERE),
        ),
    ]


def _framing() -> list[Decoder]:
    messages = b"".join(
        wire.encode_message(kind, body)
        for kind, body in (
            (wire.MessageType.BEGIN, b"{}"),
            (wire.MessageType.TREE, tree.encode_tree(sample_tree())),
            (wire.MessageType.PLAN, b""),
            (wire.MessageType.FRAME, bytes(100)),
            (wire.MessageType.END, b""),
        )
    )
    output = b"motd\n" + wire.encode_wire_record({"a": 1}) + b"x" + wire.encode_wire_record({})
    return [
        Decoder(
            covers=("wire.read_messages",),
            samples=(messages,),
            decode=lambda raw: list(wire.read_messages(BytesIO(raw).read)),
        ),
        Decoder(covers=("wire.RecordReader",), samples=(output,), decode=_read_records),
        Decoder(
            covers=("records.decode_rescue_outcome",),
            samples=(records.encode_rescue_outcome(documents.OP_ID),),
            decode=lambda raw: records.decode_rescue_outcome(raw, op_id=documents.OP_ID),
        ),
        Decoder(
            covers=("digest.parse_blake3",),
            samples=(b"blake3:" + b"0" * 64,),
            decode=lambda raw: digest.parse_blake3(raw.decode(errors="surrogateescape"), _WHERE),
        ),
        Decoder(
            covers=("digest.parse_sha256",),
            samples=(b"sha256:" + b"0" * 64,),
            decode=lambda raw: digest.parse_sha256(raw.decode(errors="surrogateescape"), _WHERE),
        ),
    ]


def _read_container(raw: bytes) -> None:
    reader = ContainerReader()
    middle = len(raw) // 2
    reader.feed(raw[:middle])
    reader.feed(raw[middle:])
    reader.close()


def _read_records(raw: bytes) -> None:
    reader = wire.RecordReader()
    middle = len(raw) // 2
    reader.feed(raw[:middle])
    reader.feed(raw[middle:])


def _verify_bundle(raw: bytes) -> None:
    found = envelope.decode_bundle(raw, where=_WHERE)
    if found is not None:
        found.verify(documents.RELEASE_KEY.public, payload_type=IN_TOTO, where=_WHERE)


def _keyless() -> list[Decoder]:
    """Return the proof of keyless bundles, by a recorded instance whose keys nobody has any more.

    A change of a field that nobody signed may pass; whatever is proved says what was signed.
    """
    root = (_KEYLESS / "trusted_root.json").read_bytes()
    verifier = SigstoreVerifier(PinnedRoot(root, where=_WHERE))
    bundles = tuple((_KEYLESS / f"rekor{n}.sigstore.json").read_bytes() for n in (1, 2))
    who = {"ci": Identity(owner="ci", san=SUBJECT, issuer=ISSUER, counter_from=1, counter_to=None)}
    payload = verifier.verify(bundles[0], who, where=_WHERE).payload

    def prove(raw: bytes) -> None:
        proved = verifier.verify(raw, who, where=_WHERE)
        assert proved.payload == payload, "something else was proved"

    both = (mutate_json, mutate_bytes)
    return [
        Decoder(covers=("keyless.SigstoreVerifier",), samples=bundles, decode=prove, mutators=both),
        Decoder(
            covers=("keyless.PinnedRoot",),
            samples=(root,),
            decode=lambda raw: PinnedRoot(raw, where=_WHERE),
            mutators=both,
        ),
    ]


def _nix() -> list[Decoder]:
    """Return what a binary cache serves; a document is believed only as it was signed."""
    node: Node = {
        "bin": {"run": Program(b"#!/bin/sh\n"), "to": Link("run")},
        "empty": {},
        "text": b"x",
    }
    key = CacheKey()
    path = StorePath(
        label="hello-1.0", node=node, references=[store_path_name("library-1.0")], key=key
    )
    signed = decode_narinfo(path.narinfo(), where=_WHERE).fingerprint

    def prove(raw: bytes) -> None:
        info = decode_narinfo(raw, where=_WHERE)
        verify_narinfo(info, [key.public], where=_WHERE)
        assert info.fingerprint == signed, "something else was proved"

    return [
        Decoder(
            covers=("builder.nix.read_nar",),
            samples=(nar(node), nar(b""), nar(Link("/nix/store/x"))),
            decode=node_of,
            encode=nar,
        ),
        Decoder(covers=("builder.nix.decode_narinfo",), samples=(path.narinfo(),), decode=prove),
    ]
