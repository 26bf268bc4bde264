"""An image of a release: pinned when it is locked, built from the pin, the lock's word kept."""

import pytest

from capsule.builder.assemble import assemble
from capsule.builder.images.component import moved_images
from capsule.builder.lock import fetch_pins
from capsule.builder.lockfile import decode_lock, encode_lock
from capsule_manifest.release import ComponentKind
from support.failures import fails_with
from support.images import ImageFile, LayoutRegistry, layer_of, write_layout
from support.indexes import cache_of
from support.locked_release import LockedRelease, silent
from support.releases import ReleaseFolder
from support.runtimes import runtime_index

NAME = "registry.test/base:1"
_TOML = """\
[components.base]
kind = "image"
{origin}
[roles.web]
"""


@pytest.fixture
def release(tmp_path, monkeypatch):
    def make(origin, registry=None):
        folder = ReleaseFolder(tmp_path / "release")
        runtime_index(folder.index, monkeypatch)
        folder.edit("[roles.web]\n", _TOML.format(origin=origin))
        folder.edit('"fetched", "script"', '"fetched", "script", "base"')
        cache = cache_of(tmp_path / "cache", folder.index, folder.files, registry)
        return LockedRelease(folder, cache)

    return make


@pytest.fixture
def registry():
    return LayoutRegistry(NAME, ImageFile(layers=[layer_of(a=b"a")]))


def test_an_image_is_a_component_like_any_other(release, registry, tmp_path):
    made = release(f'reference = "{NAME}"', registry)
    draft = made.draft(made.lock())
    (image,) = [item for item in draft.release.components if item.name == "base"]
    assert (image.kind, image.platforms) == (ComponentKind.IMAGE, ())
    assert [item.type for item in image.external] == ["image", "image-config"]
    assert assemble(draft, tmp_path / "dist", report=silent).folder.is_dir()


def test_the_lock_of_images_is_written_and_read(release, registry):
    made = release(f'reference = "{NAME}"', registry)
    lock = made.lock()
    assert decode_lock(encode_lock(lock)).images == lock.images
    assert set(lock.images) == {("base", "bookworm"), ("base", "trixie")}


def test_a_tag_that_moved_changes_nothing_until_another_is_asked_for(release, registry):
    made = release(f'reference = "{NAME}"', registry)
    lock = made.lock()
    before = made.draft(lock).capsule
    registry.images = [ImageFile(layers=[layer_of(b=b"b")])]
    assert made.lock(lock) == lock
    assert made.draft(lock).capsule == before
    registry.name = NAME.replace(":1", ":2")
    made.folder.edit(NAME, registry.name)
    with fails_with("lock-stale"):
        made.draft(lock)
    assert made.lock(lock).images != lock.images


def test_a_tag_that_moved_since_the_lock_is_named_with_both_digests(release, registry):
    made = release(f'reference = "{NAME}"', registry)
    lock = made.lock()
    assert moved_images(made.folder.release, made.cache, lock.images, report=silent) == {}
    registry.images = [ImageFile(layers=[layer_of(b=b"b")])]
    moved = moved_images(made.folder.release, made.cache, lock.images, report=silent)
    assert moved.keys() == lock.images.keys()
    assert all(
        digest.removeprefix("sha256:") != lock.images[keys].manifest_sha256
        for keys, digest in moved.items()
    )
    assert {keys: f"sha256:{pin.manifest_sha256}" for keys, pin in made.lock().images.items()} == (
        moved
    )


def test_an_image_with_a_digest_can_not_move(release, registry):
    made = release(f'reference = "{NAME}"', registry)
    digest = next(iter(made.lock().images.values())).manifest_sha256
    made.folder.edit(f'reference = "{NAME}"', f'reference = "{NAME}"\ndigest = "sha256:{digest}"')
    lock = made.lock()
    registry.images = [ImageFile(layers=[layer_of(b=b"b")])]
    assert moved_images(made.folder.release, made.cache, lock.images, report=silent) == {}


def test_a_layout_beside_the_release_is_followed_by_the_next_lock(release):
    made = release('layout = "../image"')
    folder = made.folder.work.parent / "image"
    write_layout(folder, ImageFile(layers=[layer_of(a=b"a")]))
    lock = made.lock()
    write_layout(folder, ImageFile(layers=[layer_of(b=b"b")]))
    assert made.lock(lock).images != lock.images


def test_pins_are_fetched_for_a_machine_without_network(release, registry, tmp_path):
    made = release(f'reference = "{NAME}"', registry)
    lock = made.lock()
    full = cache_of(tmp_path / "other", made.folder.index, made.folder.files, registry)
    fetch_pins(made.folder.release, lock, full, report=silent)
    offline = LockedRelease(made.folder, cache_of(tmp_path / "other"))
    assert offline.draft(lock).capsule == made.draft(lock).capsule


@pytest.mark.parametrize(
    "origin", ["", f'reference = "{NAME}"\nlayout = "image"', 'layout = "image"\ndigest = "1"']
)
def test_an_image_comes_from_exactly_one_place(release, origin):
    with fails_with("release-invalid"):
        release(origin).lock()
