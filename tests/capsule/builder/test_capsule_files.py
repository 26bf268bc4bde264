"""From listing to files and back: packing, opening, signing, the single file."""

import io
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsule.builder.capsule_dir import capsules_in, directory_name, take_packs
from capsule.builder.keyfile import generate_key, load_signer
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.opened import open_capsule
from capsule.builder.packer import list_component, pack_content, pack_name
from capsule.builder.remembered import Memory
from capsule.builder.signing import sign_directory
from capsule.builder.single_file import write_single_file
from capsule.builder.verify import verify_capsule
from capsule_manifest.pack import FRAME_CONTENT_BYTES_MAX, decode_frame
from capsule_manifest.policy import PolicyKey
from capsule_manifest.tree import EntryKind, content_order
from support import documents
from support.capsules import write_capsule
from support.failures import fails_with
from support.forgery import Forgery


def component(files, *, claimed=None):
    """Return a component whose files are opened from these bytes, whatever was claimed of them."""
    return ComponentInput(
        name="app",
        kind="source",
        platforms=(),
        entries=tuple(
            InputEntry(
                path=path,
                kind=EntryKind.FILE,
                mode=0o644,
                size_bytes=len((claimed or files)[path]),
                open=lambda path=path: io.BytesIO(files[path]),
            )
            for path in sorted(files)
        ),
        external=(),
    )


def unpacked(folder, content):
    """Return the content stream that the packs of a tree carry."""
    stream = b""
    for pack in content.packs:
        raw = (folder / pack_name(pack.id)).read_bytes()
        for frame in pack.frames:
            stream += decode_frame(raw[frame.offset : frame.offset + frame.stored_bytes], frame)
    return stream


# --- packing ------------------------------------------------------------------------------------
@settings(max_examples=20)  # each example syncs files
@given(files=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.binary(max_size=300)))
def test_packs_carry_each_object_once_in_path_order(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("packs")
    listing = list_component(component(files))
    content = pack_content(listing, folder)
    once = dict.fromkeys(files[path] for path in sorted(files) if files[path])
    assert unpacked(folder, content) == b"".join(once)
    assert content.stream_bytes == listing.content_bytes == sum(map(len, once))


def test_a_large_file_spans_frames_and_keeps_its_digest(tmp_path):
    big = os.urandom(FRAME_CONTENT_BYTES_MAX + 5)
    listing = list_component(component({"big": big, "small": b"s"}))
    content = pack_content(listing, tmp_path)
    assert len([frame for pack in content.packs for frame in pack.frames]) == 2
    assert unpacked(tmp_path, content) == big + b"s"


def test_the_order_of_inputs_does_not_change_tree_or_packs(tmp_path):
    one = component({"a": b"1", "b": b"2"})
    two = replace(one, entries=tuple(reversed(one.entries)))
    found = []
    for name, item in (("one", one), ("two", two)):
        (tmp_path / name).mkdir()
        listing = list_component(item)
        found.append((listing.tree, pack_content(listing, tmp_path / name)))
    assert found[0] == found[1]


def test_a_file_of_another_size_than_was_said_is_refused():
    with fails_with("input-changed") as caught:
        list_component(component({"a": b"12"}, claimed={"a": b"1"}))
    assert caught.value.where == "app: a"
    assert caught.value.retryable


@pytest.mark.parametrize("later", [b"2", b"12", b""])
def test_a_file_that_changes_between_the_passes_is_refused(tmp_path, later):
    files = {"a": b"1"}
    listing = list_component(component(files))
    files["a"] = later
    with fails_with("input-changed"):
        pack_content(listing, tmp_path)


def test_empty_files_need_no_pack(tmp_path):
    listing = list_component(component({"a": b"", "b": b""}))
    assert content_order(listing.tree) == ()
    assert pack_content(listing, tmp_path).packs == ()
    assert list(tmp_path.iterdir()) == []


# --- directories --------------------------------------------------------------------------------
def test_a_directory_is_named_after_product_counter_and_id(tmp_path):
    made = write_capsule(tmp_path / "x", counter=7)
    short = made.capsule.removeprefix("sha256:")[:8]
    assert directory_name(made.release, made.capsule) == f"hello-7-{short}.capsule"


def test_only_folders_of_that_name_are_capsules_and_the_newest_comes_first(tmp_path):
    names = ["a-2-00000000.capsule", "a-10-00000000.capsule", "b-c-3-00000000.capsule"]
    for name in [*names, "a-2-00000000.capsule.old", ".a-3-00000000.capsule.new", "x.capsule"]:
        (tmp_path / name).mkdir()
    (tmp_path / "a-4-00000000.capsule").write_bytes(b"a file")
    assert [path.name for path in capsules_in(tmp_path)] == [names[1], names[2], names[0]]


def test_packs_come_from_the_first_capsule_that_has_them_whole(tmp_path):
    made = [write_capsule(tmp_path / name, counter=1) for name in ("broken", "damaged", "whole")]
    root = made[2].trees["app"]
    (made[0].folder / "packing.json").write_bytes(b"{")
    for path in (made[1].folder / "packs").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    packs = tmp_path / "packs"
    packs.mkdir()
    content = take_packs(root, [item.folder for item in made], packs, Memory())
    assert content is not None
    assert content.packs
    for pack in content.packs:
        whole = made[2].folder / "packs" / pack_name(pack.id)
        assert (packs / pack_name(pack.id)).read_bytes() == whole.read_bytes()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert take_packs(root, [made[0].folder, made[1].folder], empty, Memory()) is None
    assert list(empty.iterdir()) == []


# --- signing ------------------------------------------------------------------------------------
def test_a_second_signature_leaves_id_and_first_signature_alone(tmp_path):
    made = write_capsule(tmp_path / "web.capsule")
    before = {path.name: path.read_bytes() for path in (made.folder / "signatures").iterdir()}
    generate_key(tmp_path / "qa.key", owner="qa")
    signer = load_signer(tmp_path / "qa.key")
    assert sign_directory(made.folder, signer) == made.capsule
    after = {path.name: path.read_bytes() for path in (made.folder / "signatures").iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        f"{about}-{signer.public.short}.sigstore.json" for about in ("release", "packing")
    }


def test_what_a_key_signed_is_accepted_under_a_policy_that_names_it(tmp_path):
    made = write_capsule(tmp_path / "web.capsule", signers=())
    generate_key(tmp_path / "ci.key", owner="team")
    signer = load_signer(tmp_path / "ci.key")
    sign_directory(made.folder, signer)
    policy = documents.make_policy()
    key = PolicyKey(key=signer.public, owner="team", counter_from=1, counter_to=None)
    policy = replace(
        policy,
        keys={**policy.keys, signer.public.keyid: key},
        release=replace(policy.release, keys=(*policy.release.keys, signer.public.keyid)),
    )
    verified = verify_capsule(open_capsule(made.folder), policy, report=lambda _: None)
    assert verified.owners == ("team",)


@pytest.mark.parametrize("name", ["capsule.json", "packing.json"])
def test_nobody_signs_what_is_missing_or_damaged(tmp_path, name):
    made = write_capsule(tmp_path / "web.capsule", signers=())
    path = made.folder / name
    path.write_bytes(b"{}")
    with fails_with("document-invalid"):
        sign_directory(made.folder, documents.RELEASE_KEY)
    path.unlink()
    with fails_with("capsule-incomplete"):
        sign_directory(made.folder, documents.RELEASE_KEY)
    assert list((made.folder / "signatures").iterdir()) == []


def test_nobody_signs_the_packing_of_another_capsule(tmp_path):
    made = write_capsule(tmp_path / "web.capsule", signers=())
    other = write_capsule(tmp_path / "other.capsule", counter=2)
    (made.folder / "packing.json").write_bytes((other.folder / "packing.json").read_bytes())
    with fails_with("capsule-incomplete"):
        sign_directory(made.folder, documents.RELEASE_KEY)


# --- opening ------------------------------------------------------------------------------------
def test_both_forms_hold_the_same_members_and_bytes(tmp_path):
    made = write_capsule(tmp_path / "web.capsule")
    folder, file = open_capsule(made.folder), open_capsule(write_single_file(made.folder))
    assert sorted(folder.members) == sorted(file.members)
    for name in folder.members:
        size = folder.size(name)
        assert file.size(name) == size
        assert folder.read(name, size) == file.read(name, size)
        assert (
            b"".join(file.chunks(name, size // 2, size - size // 2))
            == (folder.read(name, size)[size // 2 :])
        )


def test_a_single_file_is_the_same_bytes_every_time(tmp_path):
    made = write_capsule(tmp_path / "web.capsule")
    first = write_single_file(made.folder).read_bytes()
    for path in made.folder.rglob("*"):
        os.utime(path, (1, 1))
    assert write_single_file(made.folder).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web.capsule", "web.capsule.tar"]


def test_a_member_above_its_bound_is_refused_before_it_is_read(tmp_path):
    opened = open_capsule(write_capsule(tmp_path / "web.capsule").folder)
    size = opened.size("capsule.json")
    assert len(opened.read("capsule.json", size)) == size
    with fails_with("document-invalid"):
        opened.read("capsule.json", size - 1)


def test_a_range_past_the_end_is_refused(tmp_path):
    opened = open_capsule(write_capsule(tmp_path / "web.capsule").folder)
    size = opened.size("capsule.json")
    for offset, length in ((0, size + 1), (size, 1), (size - 1, 2)):
        with fails_with("capsule-incomplete"):
            list(opened.chunks("capsule.json", offset, length))


def test_a_member_that_shrinks_while_it_is_read_is_refused(tmp_path):
    folder = write_capsule(tmp_path / "web.capsule").folder
    opened = open_capsule(folder)
    (folder / "packing.json").write_bytes(b"{")
    with fails_with("capsule-incomplete"):
        opened.read("packing.json", 1_000_000)


def test_a_forged_capsule_that_is_signed_again_is_whole(tmp_path):
    """The forgeries of other tests fail for what they change, and for nothing else."""
    made = write_capsule(tmp_path / "web.capsule")
    Forgery(made.folder).sign()
    verified = verify_capsule(
        open_capsule(made.folder), documents.make_policy(), report=lambda _: None
    )
    assert verified.capsule == made.capsule
