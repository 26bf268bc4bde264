"""Receiving a capsule: what comes out on disk, and what is refused before anything is written."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.keys import b64decode
from capsule_manifest.records import decode_receipt
from capsule_manifest.release import ComponentKind, InstallerMinimum, Platform
from capsule_manifest.wire import Message, MessageType
from support import documents
from support.deliveries import (
    INTERPRETER,
    NODE,
    Receiver,
    default_parts,
    make_capsule,
    part,
)
from support.failures import fails_with

BIG = os.urandom(40_000_000)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    made = Receiver(str(tmp_path))
    made.enrol()
    return made


def mode_of(path: str) -> int:
    return os.lstat(path).st_mode & 0o7777


def test_a_received_capsule_is_a_generation_with_its_files_modes_and_links(receiver):
    capsule = make_capsule()
    staged = receiver.receive(capsule)
    assert staged["generation"] == capsule.generation
    assert Path(receiver.path(capsule, "app/main.py")).read_bytes() == b"print('one')\n"
    assert mode_of(receiver.path(capsule, "app/main.py")) == 0o444
    assert mode_of(receiver.path(capsule, "app/run")) == 0o555
    assert mode_of(receiver.path(capsule, "app/secret.txt")) == 0o440
    assert Path(receiver.path(capsule, "app/latest")).readlink() == Path("main.py")
    assert Path(receiver.path(capsule, "capsule.json")).read_bytes() == capsule.manifest


def test_shared_files_are_links_into_the_store_and_private_ones_are_not(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    assert os.lstat(receiver.path(capsule, "app/main.py")).st_nlink == 2
    assert os.lstat(receiver.path(capsule, "app/secret.txt")).st_nlink == 1


def test_units_and_managed_files_are_rendered_for_the_node(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    unit = Path(receiver.path(capsule, "units/hello.service")).read_text()
    assert f"{receiver.path(capsule, 'app')}/run --port 8101" in unit
    assert f"ConditionPathExists=!{receiver.layout.hold}" in unit
    assert f"CAPSULE_GENERATION={capsule.generation}" in unit
    managed = Path(receiver.path(capsule, "files/etc/hello/hello.toml"))
    assert managed.read_text() == f'port = 8101\nfolder = "{receiver.layout.current}"\n'
    assert receiver.services.checked == {"hello.service": unit}


def test_a_wheels_tree_becomes_a_virtual_environment(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    assert Path(receiver.path(capsule, "libs/bin/python")).readlink() == Path(INTERPRETER)
    assert "home = /usr/bin\n" in Path(receiver.path(capsule, "libs/pyvenv.cfg")).read_text()


def test_an_image_is_a_layout_in_the_generation_that_shares_its_blobs(receiver):
    layout = {"oci-layout": b"{}", "index.json": b"[]", "blobs/sha256/ab": b"a layer"}
    capsule = make_capsule((*default_parts(), part("base", ComponentKind.IMAGE, layout)))
    receiver.receive(capsule)
    for name, data in layout.items():
        assert Path(receiver.path(capsule, f"base/{name}")).read_bytes() == data
        assert os.lstat(receiver.path(capsule, f"base/{name}")).st_nlink == 2  # the store's, too


def test_the_marker_is_signed_and_names_what_the_host_derived(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    marker = receiver.marker(capsule)
    assert set(marker.derived) == {
        "bytecode",
        "files/etc/hello/hello.toml",
        "libs/pyvenv.cfg",
        "units/hello.service",
    }
    assert marker.trees == {part.name: part.tree.root for part in default_parts()}
    seal = Path(receiver.path(capsule, "seal.json")).read_bytes()
    assert seal == Path(receiver.layout.marker(capsule.generation)).read_bytes()


def test_the_receipt_says_what_was_staged_under_which_route(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    receipt = receiver.chain().read_all()[-1].receipt
    assert (receipt.kind, receipt.target, receipt.result) == ("stage", capsule.generation, "done")
    assert receipt.route == receiver.state.route_envelope().digest
    assert [step.name for step in receipt.steps] == [
        "plan", "receive", "realise", "bytecode", "rehearse", "seal",
    ]  # fmt: skip
    assert receipt.counts["objects"] == 8


def test_the_same_capsule_again_asks_for_nothing_and_adds_no_receipt(receiver):
    capsule = make_capsule()
    first = receiver.receive(capsule)
    count = len(receiver.chain().read_all())
    inode = os.lstat(receiver.path(capsule, "app/main.py")).st_ino
    again = receiver.receive(capsule)
    assert receiver.wanted() == {}
    assert again["receipt"] == first["receipt"]
    assert len(receiver.chain().read_all()) == count
    assert os.lstat(receiver.path(capsule, "app/main.py")).st_ino == inode


def test_bytecode_of_a_tree_that_another_generation_has_is_linked_and_not_made_again(receiver):
    first, second = make_capsule(), make_capsule(counter=8)
    receiver.receive(first)
    receiver.python.compiled.clear()
    receiver.receive(second)
    assert receiver.python.compiled == []
    name = "app/__pycache__/main.cpython-311.pyc"
    assert (
        os.lstat(receiver.path(first, name)).st_ino == os.lstat(receiver.path(second, name)).st_ino
    )
    assert receiver.marker(second).derived["bytecode"] == receiver.marker(first).derived["bytecode"]


def test_damaged_bytecode_is_never_taken_over(receiver):
    first, second = make_capsule(), make_capsule(counter=8)
    receiver.receive(first)
    good = Path(receiver.path(first, "app/__pycache__/main.cpython-311.pyc"))
    content = good.read_bytes()
    good.chmod(0o644)
    good.write_bytes(content[::-1])
    good.chmod(0o444)
    receiver.receive(second)
    assert receiver.python.compiled[-1] == receiver.path(second, "app")
    made = Path(receiver.path(second, "app/__pycache__/main.cpython-311.pyc"))
    assert made.read_bytes() == content


def test_another_route_for_the_same_files_costs_a_marker_and_a_receipt_only(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    inode = os.lstat(receiver.path(capsule, "units/hello.service")).st_ino
    receiver.receive(capsule, route=receiver.route(max_unavailable=2))
    assert receiver.wanted() == {}
    assert receiver.marker(capsule).route == receiver.state.route_envelope().digest
    assert receiver.chain().read_all()[-1].receipt.route == receiver.marker(capsule).route
    assert os.lstat(receiver.path(capsule, "units/hello.service")).st_ino == inode


def test_another_value_of_the_node_renders_again_without_content(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    receiver.receive(capsule, route=receiver.route(port="9000"))
    assert receiver.wanted() == {}
    assert "9000" in Path(receiver.path(capsule, "units/hello.service")).read_text()


def test_a_generation_in_use_is_not_rendered_anew(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    Path(receiver.layout.current).symlink_to(f"generations/{capsule.generation}")
    before = Path(receiver.path(capsule, "units/hello.service")).read_text()
    with fails_with("generation-in-use"):
        receiver.receive(capsule, route=receiver.route(port="9000"))
    assert Path(receiver.path(capsule, "units/hello.service")).read_text() == before


def test_a_second_release_asks_only_for_the_frames_with_something_new(receiver):
    big = os.urandom(5_000_000)
    files = {"a.bin": big, "b.txt": b"one"}
    old = make_capsule((part("app", ComponentKind.SOURCE, files), *default_parts()[1:]))
    new = make_capsule(
        (part("app", ComponentKind.SOURCE, files | {"b.txt": b"two"}), *default_parts()[1:]),
        counter=8,
    )
    receiver.receive(old)
    receiver.receive(new)
    assert list(receiver.wanted().values()) == [[1]]
    assert Path(receiver.path(new, "app/a.bin")).read_bytes() == big


def test_an_object_that_two_components_share_comes_once(receiver):
    shared = os.urandom(1_000_000)
    capsule = make_capsule(
        (
            part("app", ComponentKind.SOURCE, {"x": shared}),
            part("tool", ComponentKind.HELPER, {"y": shared}, modes={"y": 0o755}),
        )
    )
    receiver.receive(capsule)
    assert len(receiver.wanted()) == 1
    assert Path(receiver.path(capsule, "tool/y")).read_bytes() == shared
    assert mode_of(receiver.path(capsule, "tool/y")) == 0o555
    assert mode_of(receiver.path(capsule, "app/x")) == 0o444


# --- interrupted ---------------------------------------------------------------------------------


@cache
def big_capsule():
    return make_capsule(
        (part("app", ComponentKind.SOURCE, {"0.txt": b"small", "big": BIG, "z.txt": b"end"}),)
    )


def test_a_cut_stream_resumes_and_sends_at_most_one_frame_again(receiver):
    capsule = big_capsule()
    total = len(next(iter(capsule.stored.values())))
    assert total == 4
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(capsule, frames_max=2)))
    receiver.receive(capsule)
    assert list(receiver.wanted().values()) == [[2, 3]]
    assert Path(receiver.path(capsule, "app/big")).read_bytes() == BIG


def cut(messages):
    """End a stream as a lost connection does."""
    yield from (message for message in messages if message.type is not MessageType.END)
    raise Refused("wire-malformed", "the stream ended early")


def test_a_damaged_part_is_sent_again_from_the_damage_on(receiver):
    capsule = big_capsule()
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(capsule, frames_max=2)))
    (found,) = Path(receiver.layout.incoming).iterdir()
    raw = bytearray(found.read_bytes())
    raw[20_000_000] ^= 1
    found.write_bytes(bytes(raw))
    receiver.receive(capsule)
    assert list(receiver.wanted().values()) == [[1, 2, 3]]
    assert Path(receiver.path(capsule, "app/big")).read_bytes() == BIG


def test_a_part_damaged_where_no_digest_tells_is_found_by_the_object_and_sent_whole(receiver):
    capsule = big_capsule()
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(capsule, frames_max=2)))
    (found,) = Path(receiver.layout.incoming).iterdir()
    raw = bytearray(found.read_bytes())
    raw[0] ^= 1
    found.write_bytes(bytes(raw))
    with fails_with("partial-damaged"):
        receiver.receive(capsule)
    assert receiver.marker(capsule) is None
    receiver.receive(capsule)
    assert Path(receiver.path(capsule, "app/big")).read_bytes() == BIG


def test_a_store_file_that_no_marker_vouches_for_is_hashed_before_it_is_used(receiver):
    capsule = make_capsule()
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(capsule, frames_max=4)))
    (victim,) = (
        path
        for path in Path(receiver.layout.store).glob("*/*")
        if path.read_bytes() == b"print('one')\n"
    )
    victim.chmod(0o644)
    victim.write_bytes(b"print('bad')\n")
    receiver.receive(capsule)
    assert Path(receiver.path(capsule, "app/main.py")).read_bytes() == b"print('one')\n"


def test_parts_of_another_transfer_are_removed(receiver):
    stray = Path(receiver.layout.incoming) / f"{'ab' * 32}.part"
    stray.write_bytes(b"old")
    receiver.receive(make_capsule())
    assert not stray.exists()


def test_a_missing_file_of_a_staged_generation_is_put_back(receiver):
    capsule = make_capsule()
    receiver.receive(capsule)
    Path(receiver.path(capsule, "app/main.py")).unlink()
    receiver.receive(capsule)
    assert Path(receiver.path(capsule, "app/main.py")).read_bytes() == b"print('one')\n"


# --- refused before content ----------------------------------------------------------------------


def unchanged(receiver, messages, error_id):
    before = sorted(str(path) for path in Path(receiver.layout.opt).rglob("*"))
    with fails_with(error_id):
        receiver.take(messages)
    assert receiver.records("want") == []
    assert sorted(str(path) for path in Path(receiver.layout.opt).rglob("*")) == before


@pytest.mark.parametrize(
    ("how", "error_id"),
    [
        ({"begin": {"node": "n2"}}, "order-wrong-node"),
        ({"begin": {"role": "db"}}, "order-wrong-route"),
        ({"begin": {"platform": "trixie"}}, "order-wrong-route"),
        ({"begin": {"more": 1}}, "document-invalid"),
    ],
)
def test_a_delivery_for_somebody_else_is_refused(receiver, how, error_id):
    unchanged(receiver, receiver.messages(make_capsule(), **how), error_id)


def test_a_route_under_another_policy_is_refused(receiver):
    route = receiver.route(policy="sha256:" + "0" * 64)
    unchanged(receiver, receiver.messages(make_capsule(), route=route), "order-wrong-route")


def test_a_lower_fence_than_was_seen_is_refused(receiver):
    receiver.state.raise_fence(9)
    unchanged(receiver, receiver.messages(make_capsule(), fence=8), "order-fenced")


def test_an_accepted_fence_is_remembered(receiver):
    receiver.receive(make_capsule(), fence=5)
    assert receiver.state.fence() == 5


def test_a_capsule_signed_by_a_stranger_is_refused(receiver):
    capsule = make_capsule(signers=(documents.STRANGER_KEY,))
    with pytest.raises(CapsuleError) as caught:
        receiver.take(receiver.messages(capsule))
    assert caught.value.error_id in {"key-unknown", "threshold-not-met"}
    assert receiver.records("want") == []


def test_an_older_release_than_was_installed_is_refused(receiver):
    receiver.state.raise_counter_floor(8)
    unchanged(receiver, receiver.messages(make_capsule()), "release-counter-too-low")


def test_a_release_for_a_newer_host_program_is_refused(receiver):
    needed = InstallerMinimum(version="99.0", reason="it can fly")
    unchanged(receiver, receiver.messages(make_capsule(installer=needed)), "installer-too-old")


BOOKWORM = Platform(machine="x86_64", glibc="2.36", python="3.11", interpreter=None)


@pytest.mark.parametrize(
    "platform",
    [
        replace(BOOKWORM, machine="aarch64"),
        replace(BOOKWORM, glibc="2.40"),
        replace(BOOKWORM, python="3.13"),
        replace(BOOKWORM, interpreter="/nowhere/python3.11"),
    ],
)
def test_a_host_of_another_platform_is_refused_before_content(receiver, platform):
    unchanged(receiver, receiver.messages(make_capsule(platform=platform)), "platform-mismatch")


def without(kind):
    return lambda messages: [message for message in messages if message.type is not kind]


@pytest.mark.parametrize(
    ("kind", "error_id"),
    [
        (MessageType.BEGIN, "wire-malformed"),
        (MessageType.ROUTE, "wire-malformed"),
        (MessageType.MANIFEST, "wire-malformed"),
        (MessageType.SIGNATURE, "signature-missing"),
        (MessageType.PACKING, "wire-malformed"),
        (MessageType.TREE, "partial-damaged"),
    ],
)
def test_a_delivery_that_lacks_a_part_is_refused(receiver, kind, error_id):
    unchanged(receiver, receiver.messages(make_capsule(), edit=without(kind)), error_id)


def test_a_listing_of_nobody_is_refused(receiver):
    foreign = make_capsule(default_parts("two"))
    tree = Message(type=MessageType.TREE, body=next(iter(foreign.trees.values())))
    unchanged(
        receiver,
        receiver.messages(make_capsule(), edit=lambda m: [*m[:-1], tree, m[-1]]),
        "wire-malformed",
    )


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a\nb"])
def test_a_signature_with_an_odd_name_is_refused(receiver, name):
    def edit(messages):
        odd = Message(type=MessageType.SIGNATURE, body=name.encode() + b"\0{}")
        return [*messages[:3], odd, *messages[3:]]

    unchanged(receiver, receiver.messages(make_capsule(), edit=edit), "wire-malformed")


# --- refused with content ------------------------------------------------------------------------


def test_a_flipped_bit_of_a_frame_is_refused_and_nothing_is_staged(receiver):
    capsule = make_capsule()

    def damage(messages):
        for message in messages:
            if message.type is MessageType.FRAME:
                body = bytearray(message.body)
                body[-1] ^= 1
                yield replace(message, body=bytes(body))
            else:
                yield message

    with fails_with("frame-digest-mismatch"):
        receiver.take(damage(receiver.messages(capsule)))
    assert receiver.marker(capsule) is None


@pytest.mark.parametrize("edit", ["repeat", "foreign", "short", "early"])
def test_frames_that_were_not_asked_for_are_refused(receiver, edit):
    capsule = make_capsule()

    def changed(messages):
        for message in messages:
            if message.type is not MessageType.FRAME:
                yield message
            elif edit == "repeat":
                yield message
                yield message
            elif edit == "foreign":
                yield replace(message, body=bytes(32) + message.body[32:])
            elif edit == "short":
                yield replace(message, body=message.body[:20])
            else:
                yield Message(type=MessageType.END, body=b"")
                return

    with fails_with("wire-malformed"):
        receiver.take(changed(receiver.messages(capsule)))
    assert receiver.marker(capsule) is None


def test_frames_of_two_trees_never_mix(receiver):
    first, second = os.urandom(6_000_000), os.urandom(6_000_000)
    capsule = make_capsule(
        (
            part("a", ComponentKind.SOURCE, {"1": first, "2": second}),
            part("b", ComponentKind.SOURCE, {"3": first[::-1], "4": second[::-1]}),
        )
    )

    def mixed(messages):
        held = []
        for message in messages:
            if message.type is MessageType.FRAME:
                held.append(message)
            elif message.type is MessageType.END:
                yield from (held[0], held[2], held[1], held[3], message)
            else:
                yield message

    with fails_with("wire-malformed"):
        receiver.take(mixed(receiver.messages(capsule)))


# --- rehearsal -----------------------------------------------------------------------------------


def test_a_package_that_can_not_be_imported_stops_the_staging(receiver):
    files = {"lib/python3.11/site-packages/fast/core.cpython-311-x86_64-linux-gnu.so": b"elf"}
    capsule = make_capsule((part("libs", ComponentKind.WHEELS, files),))
    receiver.python.failing = {"fast": "ImportError: no such symbol"}
    with fails_with("rehearsal-failed") as caught:
        receiver.receive(capsule)
    assert "no such symbol" in str(caught.value)
    assert receiver.marker(capsule) is None


def test_a_unit_that_the_service_manager_refuses_stops_the_staging(receiver):
    receiver.services.problems = ["hello.service: no ExecStart"]
    capsule = make_capsule()
    with fails_with("rehearsal-failed"):
        receiver.receive(capsule)
    assert receiver.marker(capsule) is None


def test_configuration_that_does_not_parse_stops_the_staging(receiver):
    capsule = make_capsule()
    route = receiver.route(port="= =")
    with fails_with("rehearsal-failed"):
        receiver.receive(capsule, route=route)


def test_a_value_that_the_route_lacks_stops_the_staging(receiver):
    nodes = {NODE: replace(receiver.route().nodes[NODE], vars={})}
    with fails_with("template-value-missing"):
        receiver.receive(make_capsule(), route=receiver.route(nodes=nodes))


# --- runtime -------------------------------------------------------------------------------------


def test_a_runtime_that_first_contact_unpacked_is_not_sent_again(receiver):
    files = {"site/program.py": b"print(1)\n", "VERSION": b"1\n"}
    runtime = part("runtime-bookworm", ComponentKind.RUNTIME, files, platforms=("bookworm",))
    capsule = make_capsule((runtime, *default_parts()))
    folder = Path(receiver.layout.runtimes) / runtime.tree.root.hex()[:8]
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    receiver.receive(capsule)
    assert runtime.tree.root not in receiver.wanted()
    assert mode_of(str(folder / "site/program.py")) == 0o444
    assert (folder / "site/__pycache__/program.cpython-311.pyc").exists()
    receiver.receive(capsule)
    assert receiver.wanted() == {}


def test_a_runtime_that_is_not_there_is_realised_beside_the_generations(receiver):
    runtime = part(
        "runtime-bookworm", ComponentKind.RUNTIME, {"VERSION": b"1\n"}, platforms=("bookworm",)
    )
    receiver.receive(make_capsule((runtime, *default_parts())))
    folder = Path(receiver.layout.runtimes) / runtime.tree.root.hex()[:8]
    assert (folder / "VERSION").read_bytes() == b"1\n"


def test_a_staged_receipt_travels_in_the_answer(receiver):
    staged = receiver.receive(make_capsule())
    envelope = decode_record(b64decode(staged["receipt"], "x"), where="x")
    assert decode_receipt(envelope.payload).kind == "stage"
