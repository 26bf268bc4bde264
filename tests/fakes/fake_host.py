"""A host program that keeps its word on the wire and does nothing: for tests of the controller.

Run as `fake_host.py ROOT RUNTIME VERB…`. Its state is JSON in `ROOT/fake.json`; a test changes how
it behaves by writing `ROOT/behave.json`:

    {"hang": "hello"}            that verb never answers
    {"die": {"receive": 5}}      that verb ends without a word after so many messages, once
    {"refuse": {"install": id}}  that verb answers this error
    {"result": "restored"}       what an installation comes to
    {"reason": "TEXT"}           why, in every receipt
    {"lie": "proof"}             a proof of another generation; "receipt": one of another op;
                                 "past": another first receipt; "key": another node key
    {"files": {PLACE: TEXT}}     what differs of its managed files, until it is set aside
    {"noise": true}              what a shell's start-up files print comes first
    {"old": true}                it has never heard of `--hello` at a verb's head
"""

import json
import sys
import time
from pathlib import Path

from capsule_manifest.canonical import DEFAULT_LIMITS as LIMITS
from capsule_manifest.canonical import decode
from capsule_manifest.digest import CapsuleId, blake3_text, sha256_text
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError
from capsule_manifest.keys import b64decode, b64encode
from capsule_manifest.orders import decode_confirm, decode_order
from capsule_manifest.pack import decode_frame
from capsule_manifest.packing import decode_packing
from capsule_manifest.policy import decode_policy
from capsule_manifest.records import (
    PROOF_TYPE,
    RECEIPT_TYPE,
    Proof,
    Receipt,
    UnitProof,
    encode_proof,
    encode_receipt,
    guard_text,
)
from capsule_manifest.release import capsule_id, decode_release, generation_name
from capsule_manifest.tree import decode_tree
from capsule_manifest.trust_orders import verify_confirm, verify_order, verify_route
from capsule_manifest.wire import MessageType, encode_wire_record, read_messages
from support.signing import FixedSigner


class Host:
    """One run of one verb."""

    def __init__(self, root, runtime):
        self.root = Path(root)
        self.runtime = runtime
        self.path = self.root / "fake.json"
        self.behaviour = self._read("behave.json", {})
        self.state = self._read(
            "fake.json",
            {
                "fence": 0,
                "receipts": [],
                "objects": [],
                "trees": [],
                "staged": [],
                "current": "absent",
                "previous": "absent",
                "ops": {},
                "capsules": {},
                "sessions": 0,
                "frames": 0,
            },
        )
        name = str(self.root) + ("'" if self.behaviour.get("lie") == "key" else "")
        self.signer = FixedSigner(f"n{sum(name.encode())}")

    def run(self, verb, *arguments):
        if self.behaviour.get("noise"):
            sys.stdout.write("Welcome to this host!\n")
            sys.stdout.flush()
        if self.behaviour.get("hang") == verb:
            time.sleep(3600)
        refusal = self.behaviour.get("refuse", {}).get(verb)
        if refusal is not None:
            self.say(
                record="error",
                error=refusal,
                what="as the test wants",
                expected="",
                got="",
                where="here",
            )
            return 21
        self.messages_left = self._death(verb)
        return getattr(self, verb)(*arguments) or 0

    def hello(self):
        if self.behaviour.get("hang") == "hello":
            time.sleep(3600)
        route = self.state.get("route")
        self.say(
            record="hello",
            wire=1,
            installer="0.1.0",
            runtime=self.runtime,
            node=self.state.get("node"),
            node_key=b64encode(self.signer.public.spki) if "node" in self.state else None,
            machine="x86_64",
            glibc="2.36",
            pythons={"3.11": sys.executable},
            free_bytes=10**9,
            free_inodes=10**6,
            mount_noexec=False,
            boot_id="boot",
            boot_ms=1000,
            nonce="nonce",
            fence=self.state["fence"],
            counter_floor=0,
            policy=sha256_text(b64decode(self.state["policy"], ""))
            if "policy" in self.state
            else None,
            route=sha256_text(decode_record(b64decode(route, ""), where="").payload)
            if route
            else None,
            staged=self.state["staged"],
            trees=self.state["trees"],
            current=self.state["current"],
            previous=self.state["previous"],
            open_op=None,
            hold=False,
            guard_levels=["L0"],
            service_manager="process",
            partial_bytes=0,
            something_newer=[1, 2],
        )

    def enrol(self):
        request = decode(sys.stdin.buffer.read(), limits=LIMITS, where="enrol")
        before = {key: self.state.get(key) for key in ("node", "policy")}
        after = {key: request[key] for key in ("node", "policy")}
        if before["node"] is not None and before != after:
            self.say(
                record="error",
                error="enrolment-differs",
                what="enrolled otherwise",
                expected="",
                got="",
                where="",
            )
            return 10
        self.state |= after
        receipt = self.receipt("enrol", result="done")
        self.save()
        self.say(record="enrolled", node_key=b64encode(self.signer.public.spki), receipt=receipt)
        return 0

    def receive(self, *options):
        if options and self.behaviour.get("old"):
            return 2
        if options:
            self.hello()
            if not sys.stdin.buffer.peek(1):
                return 0
        self.state["sessions"] += 1
        self.save()
        trees, frames = {}, 0
        for message in read_messages(sys.stdin.buffer.read):
            if self.messages_left is not None:
                self.messages_left -= 1
                if self.messages_left < 0:
                    return 1
            body = message.body
            match message.type:
                case MessageType.BEGIN:
                    self.begin = json.loads(body)
                case MessageType.ROUTE:
                    self.state["route"] = b64encode(body)
                case MessageType.MANIFEST:
                    self.manifest = body
                case MessageType.PACKING:
                    self.packing = decode_packing(body)
                case MessageType.TREE:
                    tree = decode_tree(body, root=None)
                    trees[tree.root] = tree
                case MessageType.PLAN:
                    self.want(trees)
                case MessageType.FRAME:
                    root, index = body[:32], int.from_bytes(body[32:36], "big")
                    rows = [f for pack in self.packing.contents[root].packs for f in pack.frames]
                    decode_frame(body[36:], rows[index])
                    frames += 1
                    self.say(record="progress", frames=frames, bytes=len(body))
        return self.staged(trees, frames)

    def want(self, trees):
        release = decode_release(self.manifest)
        wanted = {}
        for component in release.selected(self.begin["role"], self.begin["platform"]):
            name = blake3_text(component.tree)
            assert component.tree in trees or name in self.state["trees"]
            rows = [f for p in self.packing.contents[component.tree].packs for f in p.frames]
            if name not in self.state["trees"] and rows:
                wanted[name] = list(range(len(rows)))
        stored = sum(
            frame.stored_bytes
            for root, content in self.packing.contents.items()
            if blake3_text(root) in wanted
            for pack in content.packs
            for frame in pack.frames
        )
        self.say(record="want", frames=wanted, bytes=stored, free_after=10**8)

    def staged(self, trees, frames):
        release = decode_release(self.manifest)
        identity = capsule_id(self.manifest)
        generation = generation_name(release.release_counter, identity)
        self.state["fence"] = max(self.state["fence"], self.begin["fence"])
        self.state["trees"] = sorted({*self.state["trees"], *(blake3_text(r) for r in trees)})
        self.state["staged"] = sorted({*self.state["staged"], generation})
        self.state["capsules"][generation] = b64encode(self.manifest)
        self.state["frames"] += frames
        receipt = self.receipt("stage", result="done", capsule=identity, target=generation)
        self.save()
        self.say(
            record="staged",
            generation=generation,
            receipt=receipt,
            objects=1,
            content_bytes=1,
            reused_objects=0,
            took_ms=5,
        )
        return 0

    def install(self, *options):
        if options and self.behaviour.get("old"):
            return 2
        if options:
            self.hello()
            if not sys.stdin.buffer.peek(1):
                return 0
        raw = sys.stdin.buffer.read()
        envelope = decode_record(raw, where="order")
        order = verify_order(self.policy(), self.route(), envelope)
        if order.fence < self.state["fence"]:
            self.say(
                record="error", error="order-fenced", what="fenced", expected="", got="", where=""
            )
            return 7
        if order.op_id not in self.state["ops"]:
            self.state["fence"] = order.fence
            self.state["ops"][order.op_id] = {"order": b64encode(raw)}
            self.save()
        if self.messages_left is not None:
            return 1
        self.say(record="accepted", op_id=order.op_id)
        return self.follow(order.op_id, *options[1:]) if options else 0

    def follow(self, op_id, _timeout_option, _timeout):
        op = self.state["ops"][op_id]
        order = decode_order(decode_record(b64decode(op["order"], ""), where="").payload)
        self.say(record="step", name="stopped", state="done", took_ms=3)
        release = decode_release(b64decode(self.state["capsules"][order.generation], ""))
        if self.messages_left is not None:
            return 1
        result = self.behaviour.get("result", "committed")
        if result == "committed" and "receipt" not in op:
            self.say(record="proof", proof=self.proof(order, release.source.commit))
            end = time.monotonic() + 5
            while "confirm" not in self._read("fake.json", {})["ops"][op_id]:
                if time.monotonic() > end:
                    result = "restored"
                    break
                time.sleep(0.02)
            self.state = self._read("fake.json", {})
            op = self.state["ops"][op_id]
        if "receipt" not in op:
            op["receipt"] = self.receipt(
                "install",
                result=result,
                capsule=order.capsule,
                source=order.prior,
                target=order.generation,
                route=order.route,
                guard=guard_text("L0"),
                op_id="f" * 32 if self.behaviour.get("lie") == "receipt" else order.op_id,
            )
            if result == "committed":
                self.state |= {"previous": self.state["current"], "current": order.generation}
            self.save()
        self.say(record="outcome", result=result, by="confirm")
        self.say(record="receipt", receipt=op["receipt"])
        return {"committed": 0, "restored": 60}.get(result, 61)

    def proof(self, order, commit):
        lie = self.behaviour.get("lie") == "proof"
        unit = UnitProof(
            unit="hello.service",
            pid=1,
            started_ticks=1,
            invocation_id="i",
            restarts=0,
            commit=commit,
            evidence=("cwd",),
        )
        proof = Proof(
            op_id=order.op_id,
            node=order.node,
            capsule=order.capsule,
            generation="9-ffffffff" if lie else order.generation,
            boot_id="boot",
            units=(unit,),
        )
        signed = sign(encode_proof(proof), payload_type=PROOF_TYPE, signer=self.signer)
        return b64encode(encode_record(signed))

    def confirm(self):
        raw = sys.stdin.buffer.read()
        confirm = verify_confirm(self.policy(), self.route(), decode_record(raw, where="confirm"))
        self.state["ops"][confirm.op_id]["confirm"] = decode_confirm(
            decode_record(raw, where="confirm").payload
        ).proof
        self.save()
        self.say(record="confirmed", op_id=confirm.op_id)

    def files(self, *options):
        differ = dict(self.behaviour.get("files", {}))
        kept, receipt = {}, None
        if "--set-aside" in options and differ:
            kept = {place: f"/quarantine{place}" for place in differ}
            receipt = self.receipt("files", result="done")
            self.save()
            differ = dict.fromkeys(differ, "same")
        self.say(record="files", files=differ, kept=kept, put_back=list(kept), receipt=receipt)

    def gc(self, *options):
        self.say(
            record="collected", dry_run="--dry-run" in options, kept={}, generations=[], objects=0,
            freed_bytes=0,
        )  # fmt: skip

    def receipts(self, *_):
        for record in self.state["receipts"]:
            self.say(record="receipt", receipt=record)

    def receipt(
        self,
        kind,
        *,
        result,
        capsule="",
        source="absent",
        target="absent",
        route=None,
        op_id="",
        guard="",
    ):
        last = self.state["receipts"][-1] if self.state["receipts"] else None
        previous = decode_record(b64decode(last, ""), where="").digest if last else None
        if route is None:
            route = self.route().digest if "route" in self.state else ""
        made = Receipt(
            sequence=len(self.state["receipts"]) + 1,
            previous=previous,
            kind=kind,
            node=self.state["node"],
            node_key=self.signer.public.keyid,
            op_id=op_id,
            epoch="",
            fence=self.state["fence"],
            route=route,
            capsule=CapsuleId(capsule),
            source=source,
            target=target,
            result=result,
            reason=self.behaviour.get("reason", ""),
            guard=guard,
        )
        signed = sign(encode_receipt(made), payload_type=RECEIPT_TYPE, signer=self.signer)
        self.state["receipts"].append(b64encode(encode_record(signed)))
        return self.state["receipts"][-1]

    def policy(self):
        return decode_policy(b64decode(self.state["policy"], ""))

    def route(self):
        envelope = decode_record(b64decode(self.state["route"], ""), where="route")
        return verify_route(self.policy(), envelope)

    def say(self, **record):
        sys.stdout.buffer.write(encode_wire_record(record))
        sys.stdout.buffer.flush()

    def save(self):
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.state))
        temporary.replace(self.path)

    def _death(self, verb):
        """Return after how many messages to die, if not dead once already."""
        after = self.behaviour.get("die", {}).get(verb)
        mark = self.root / f"died-in-{verb}"
        if after is None or mark.exists():
            return None
        mark.touch()
        return after

    def _read(self, name, default):
        path = self.root / name
        return json.loads(path.read_text()) if path.exists() else default


def main(root, runtime, *verb):
    host = Host(root, runtime)
    try:
        return host.run(*verb)
    except CapsuleError as error:
        host.say(record="error", **error.as_record())
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
