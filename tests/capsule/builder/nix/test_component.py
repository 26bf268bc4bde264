"""A component of a flake: pinned where Nix is, built anywhere from the pin."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from capsule.builder.assemble import assemble
from capsule.builder.lock import fetch_pins
from capsule.builder.lockfile import decode_lock, encode_lock
from capsule.builder.nix.access import NixAccess
from capsule.builder.nix.caches import FolderCache
from capsule.builder.nix.program import Described
from capsule.sbom.cyclonedx import encode_cyclonedx
from capsule.sbom.parts import PartKind, bill_of
from capsule.sbom.spdx import encode_spdx
from capsule_manifest.release import ComponentKind
from capsule_manifest.tree_entry import EntryKind
from support.failures import fails_with
from support.indexes import NoNix, cache_of
from support.locked_release import LockedRelease, silent
from support.nars import CacheKey, Link, Program, StorePath, store_path_name
from support.releases import ReleaseFolder
from support.runtimes import runtime_index

NOW = datetime(2026, 1, 2, tzinfo=UTC)
REVISION = "0" * 40
KEY = CacheKey()
_TOML = """\
[components.greet]
kind = "toolchain"
[components.greet.nix]
{origin}
[roles.web]
"""
LIBRARY = StorePath(label="words-1.0", node={"words": b"hello\n"})


def greet(**changes):
    library = f"/nix/store/{LIBRARY.name}"
    script = f"#!/bin/sh\nexec cat {library}/words\n".encode()
    fields = {
        "label": "greet-1.0",
        "node": {
            "bin": {"greet": Program(script), "hi": Link("greet")},
            "words": Link(f"{library}/words"),
        },
        "references": sorted([LIBRARY.name, store_path_name("greet-1.0")]),
    }
    return StorePath(**(fields | changes))


class FolderNix:
    """A Nix that has built all that it will ever build. See `ClosureBuilder`."""

    def __init__(self, *paths):
        self.paths = list(paths)
        self.kind = "toolchain"
        self.bin = ("bin/greet",)
        self.asked = []

    def is_present(self):
        return True

    def build(self, ask, folder):
        self.asked.append(ask)
        for path in self.paths:
            path.write(folder)
        return Described(revision=REVISION, kind=self.kind, root=self.paths[0].name, bin=self.bin)


class Release(LockedRelease):
    def component(self, lock):
        (component,) = [c for c in self.resolved(lock).components if c.name == "greet"]
        return component


@pytest.fixture
def release(tmp_path, monkeypatch):
    def make(nix, origin='flake = "."'):
        folder = ReleaseFolder(tmp_path / "release")
        runtime_index(folder.index, monkeypatch)
        folder.edit("[roles.web]\n", _TOML.format(origin=origin))
        folder.edit('"fetched", "script"', '"fetched", "script", "greet"')
        access = NixAccess(builder=nix, caches=())
        return Release(folder, cache_of(tmp_path / "cache", folder.index, folder.files, nix=access))

    return make


def elsewhere(made, folder, *caches):
    """Return the same release on a machine without Nix, which knows these binary caches."""
    access = NixAccess(builder=NoNix(), caches=tuple(map(FolderCache, caches)))
    cache = cache_of(folder, made.folder.index, made.folder.files, nix=access)
    return Release(made.folder, cache)


def binary_cache(folder, *paths):
    for path in paths:
        path.write(folder)
    return folder


def test_a_closure_is_a_component_like_any_other(release, tmp_path):
    made = release(FolderNix(greet(), LIBRARY))
    draft = made.draft(made.lock())
    (component,) = [item for item in draft.release.components if item.name == "greet"]
    assert (component.kind, component.platforms) == (ComponentKind.TOOLCHAIN, ())
    assert sorted((item.type, item.name) for item in component.external) == sorted(
        ("nix-path", name) for name in (greet().name, LIBRARY.name)
    )
    assert assemble(draft, tmp_path / "dist", report=silent).folder.is_dir()


def test_bills_list_every_store_path_by_name_and_version(release):
    made = release(FolderNix(greet(), LIBRARY))
    draft = made.draft(made.lock())
    bill = bill_of(draft.capsule, draft.release, draft.listings)
    parts = [part for part in bill.parts if part.kind is PartKind.STORE_PATH]
    assert sorted((part.name, part.version) for part in parts) == [
        ("greet", "1.0"),
        ("words", "1.0"),
    ]
    raw = encode_cyclonedx(bill).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw) is None
    assert encode_spdx(bill)


def test_store_paths_lie_below_nix_store_and_programs_in_bin(release):
    made = release(FolderNix(greet(), LIBRARY))
    entries = {entry.path: entry for entry in made.component(made.lock()).entries}
    root, library = greet().name, LIBRARY.name
    assert set(entries) == {
        "bin/greet",
        "nix/closure.json",
        f"nix/store/{root}",
        f"nix/store/{root}/bin",
        f"nix/store/{root}/bin/greet",
        f"nix/store/{root}/bin/hi",
        f"nix/store/{root}/words",
        f"nix/store/{library}",
        f"nix/store/{library}/words",
    }
    assert entries["bin/greet"].target == f"../nix/store/{root}/bin/greet"
    assert entries[f"nix/store/{root}/bin/greet"].mode == 0o755
    assert entries[f"nix/store/{library}/words"].mode == 0o644
    with entries[f"nix/store/{library}/words"].open() as stream:
        assert stream.read() == b"hello\n"


def test_a_link_to_the_store_holds_where_the_component_lies(release):
    made = release(FolderNix(greet(), LIBRARY))
    entries = {entry.path: entry for entry in made.component(made.lock()).entries}
    path = f"nix/store/{greet().name}/words"
    assert entries[path].target == f"../{LIBRARY.name}/words"
    with entries["nix/closure.json"].open() as stream:
        record = json.load(stream)
    links = record["paths"][greet().name]["links"]
    assert links == {"words": f"/nix/store/{LIBRARY.name}/words"}


def test_a_store_path_that_is_a_link_itself_is_carried(release):
    alias = StorePath(
        label="alias", node=Link(f"/nix/store/{LIBRARY.name}"), references=[LIBRARY.name]
    )
    nix = FolderNix(alias, LIBRARY)
    nix.bin = ()
    made = release(nix)
    entries = {entry.path: entry for entry in made.component(made.lock()).entries}
    assert entries[f"nix/store/{alias.name}"].target == LIBRARY.name


@pytest.mark.parametrize(
    ("target", "error_id"),
    [
        ("/etc/ssl/certs", "nix-link-outside"),
        ("/nix/store", "nix-link-outside"),
        (f"/nix/store/{store_path_name('stranger')}/x", "nix-link-outside"),
        ("../../../outside", "nix-link-outside"),
        ("../../../../../outside", "link-escapes"),
        (f"/nix/store/{LIBRARY.name}/../../../etc", "link-escapes"),
    ],
)
def test_a_link_that_leads_out_of_the_closure_is_refused_when_it_is_locked(
    release, target, error_id
):
    path = greet(node={"bin": {"greet": Program(b""), "out": Link(target)}})
    with fails_with(error_id):
        release(FolderNix(path, LIBRARY)).lock()


def test_the_lock_of_closures_is_written_and_read(release):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    assert decode_lock(encode_lock(lock)).closures == lock.closures
    assert set(lock.closures) == {("greet", "bookworm"), ("greet", "trixie")}
    assert b"file:" not in encode_lock(lock)


def test_the_flake_is_asked_at_the_commit_of_its_work_tree(release):
    nix = FolderNix(greet(), LIBRARY)
    made = release(nix)
    made.lock()
    head = made.folder.repository.git("rev-parse", "HEAD")
    assert {ask.flake for ask in nix.asked} == {f"git+file://{made.folder.work}?rev={head}"}
    assert {(ask.component, ask.system) for ask in nix.asked} == {("greet", "x86_64-linux")}


def test_locking_again_changes_nothing_that_is_the_same(release):
    nix = FolderNix(greet(), LIBRARY)
    made = release(nix)
    lock = made.lock()
    assert made.lock(lock) is lock
    nix.paths[1] = StorePath(label="words-1.0", node={"words": b"good day\n"})
    assert made.lock(lock).closures != lock.closures


def test_a_flake_elsewhere_is_asked_only_when_the_question_changed(release):
    nix = FolderNix(greet(), LIBRARY)
    made = release(nix, 'flake = "github:acme/tools"')
    lock = made.lock()
    count = len(nix.asked)
    made.lock(lock)
    assert len(nix.asked) == count
    made.folder.edit("acme/tools", "acme/tools/v2")
    with fails_with("lock-stale"):
        made.draft(lock)
    made.lock(lock)
    assert len(nix.asked) > count


@pytest.mark.parametrize("compression", ["none", "xz", "zstd"])
def test_a_machine_without_nix_builds_the_same_capsule_from_a_binary_cache(
    release, tmp_path, compression
):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    paths = [greet(compression=compression)]
    paths.append(StorePath(label="words-1.0", node=LIBRARY.node, compression=compression))
    there = elsewhere(made, tmp_path / "there", binary_cache(tmp_path / "binary", *paths))
    assert there.draft(lock).capsule == made.draft(lock).capsule


def test_a_machine_without_nix_locks_what_is_pinned_already(release, tmp_path):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    there = elsewhere(made, tmp_path / "there", binary_cache(tmp_path / "binary", greet(), LIBRARY))
    assert there.lock(lock) is lock


def test_pins_are_fetched_for_a_machine_without_network(release, tmp_path):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    there = elsewhere(made, tmp_path / "there", binary_cache(tmp_path / "binary", greet(), LIBRARY))
    fetch_pins(made.folder.release, lock, there.cache, report=silent)
    offline = Release(made.folder, cache_of(tmp_path / "there"))
    assert offline.draft(lock).capsule == made.draft(lock).capsule


def test_the_next_cache_is_asked_when_one_has_another_content(release, tmp_path):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    evil = greet(node={"bin": {"greet": Program(b"evil")}})
    liar = binary_cache(tmp_path / "liar", evil, LIBRARY)
    honest = binary_cache(tmp_path / "honest", greet(), LIBRARY)
    assert elsewhere(made, tmp_path / "there", liar, honest).draft(lock)
    with fails_with("nix-nar-mismatch"):
        elsewhere(made, tmp_path / "other", liar).draft(lock)


def test_without_nix_and_without_a_pin_both_ways_out_are_named(release, tmp_path):
    made = release(FolderNix(greet(), LIBRARY))
    with fails_with("nix-missing") as caught:
        elsewhere(made, tmp_path / "there").lock()
    assert "nix.greet.bookworm" in caught.value.where
    assert "release.lock" in caught.value.advice


def test_a_pinned_path_that_no_cache_has_is_named(release, tmp_path):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    there = elsewhere(made, tmp_path / "there", binary_cache(tmp_path / "binary", greet()))
    with fails_with("nix-path-unavailable") as caught:
        there.draft(lock)
    assert caught.value.expected == LIBRARY.name


def test_a_closure_that_lacks_a_path_is_refused_when_it_is_locked(release):
    with fails_with("nix-closure-open"):
        release(FolderNix(greet())).lock()


@pytest.mark.parametrize("change", ["root", "reference", "idle", "twice"])
def test_a_lock_whose_closure_was_edited_is_refused(release, change):
    made = release(FolderNix(greet(), LIBRARY))
    lock = made.lock()
    pin = lock.closures["greet", "bookworm"]
    other = store_path_name("other")
    (library,) = [path for path in pin.paths if path.name == LIBRARY.name]
    (root,) = [path for path in pin.paths if path.name == pin.root]
    edited = {
        "root": replace(pin, root=other),
        "reference": replace(pin, paths=(replace(root, references=(other,)), library)),
        "idle": replace(pin, paths=(replace(root, references=()), library)),
        "twice": replace(pin, paths=(*pin.paths, replace(library, nar_sha256="0" * 64))),
    }[change]
    with fails_with("nix-closure-open"):
        made.draft(replace(lock, closures=dict.fromkeys(lock.closures, edited)))


def test_a_program_that_the_root_has_not_got_is_refused(release):
    nix = FolderNix(greet(), LIBRARY)
    nix.bin = ("bin/missing",)
    with fails_with("nix-component-invalid"):
        release(nix).lock()


def test_a_program_that_may_not_run_is_refused(release):
    nix = FolderNix(greet(node={"bin": {"greet": b"text"}}), LIBRARY)
    with fails_with("nix-component-invalid"):
        release(nix).lock()


def test_another_kind_than_the_flake_has_is_refused(release):
    nix = FolderNix(greet(), LIBRARY)
    nix.kind = "helper"
    with fails_with("nix-component-invalid"):
        release(nix).lock()


def test_pinned_keys_must_have_signed_every_path(release):
    with fails_with("nix-signature-missing"):
        release(FolderNix(greet(key=KEY), LIBRARY), f'flake = "."\nkeys = ["{KEY.public}"]').lock()


def test_a_binary_cache_without_the_pinned_keys_signature_is_refused(release, tmp_path):
    signed = [greet(key=KEY), StorePath(label="words-1.0", node=LIBRARY.node, key=KEY)]
    made = release(FolderNix(*signed), f'flake = "."\nkeys = ["{KEY.public}"]')
    lock = made.lock()
    unsigned = binary_cache(tmp_path / "unsigned", greet(), LIBRARY)
    with fails_with("nix-signature-missing"):
        elsewhere(made, tmp_path / "there", unsigned).draft(lock)
    wrong = CacheKey(seed=9)
    forged = binary_cache(
        tmp_path / "forged",
        greet(key=wrong),
        StorePath(label="words-1.0", node=LIBRARY.node, key=wrong),
    )
    with fails_with("nix-signature-invalid"):
        elsewhere(made, tmp_path / "other", forged).draft(lock)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        'flake = "/absolute"',
        'flake = "github:acme/tools#attribute"',
        'flake = "-x:y"',
        'flake = "."\nkeys = ["no key"]',
        'flake = "."\nattribute = "x"',
        'flake = "."\ncomponent = "../x"',
    ],
)
def test_an_origin_of_another_form_is_refused(release, origin):
    with fails_with("release-invalid"):
        release(FolderNix(greet(), LIBRARY), origin).lock()


def test_a_folder_in_an_archive_that_is_empty_stays(release):
    path = greet(node={"bin": {"greet": Program(b"")}, "empty": {}})
    made = release(FolderNix(path, LIBRARY))
    entries = {entry.path: entry for entry in made.component(made.lock()).entries}
    assert entries[f"nix/store/{path.name}/empty"].kind is EntryKind.DIRECTORY
