"""Images become layouts of uncompressed layers, and what is wrong with one is found before that."""

import json

import pytest

from capsule.builder.images.image import image_entries
from capsule.builder.images.source import ImageOrigin, ImageStore
from capsule_manifest.errors import Refused
from support.failures import fails_with
from support.images import (
    ImageFile,
    LayoutRegistry,
    digest_of,
    index_of,
    layer_of,
    write_archive,
    write_layout,
)
from support.indexes import NoImages, cache_of

LAYERS = [layer_of(base=b"base\n" * 1000), layer_of(app=b"app\n")]
NAME = "registry.test/app:1"


@pytest.fixture
def cache(tmp_path):
    return cache_of(tmp_path / "cache")


@pytest.fixture
def layout(tmp_path):
    def write(*images, digest=None, name="image"):
        write_layout(tmp_path / name, *images)
        return ImageOrigin(name=name, layout=tmp_path / name, reference=None, digest=digest)

    return write


def obtain(cache, origin, fetcher=None, machine="x86_64"):
    store = ImageStore(cache, fetcher or NoImages())
    return store.obtain(origin, store.resolve(origin, machine), machine)


def contents(image):
    files = {}
    for entry in image_entries(image)[0]:
        with entry.open() as stream:
            files[entry.path] = stream.read()
        assert len(files[entry.path]) == entry.size_bytes
    return files


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_the_entries_are_a_layout_whose_layers_are_uncompressed(cache, layout, compression):
    made = ImageFile(layers=LAYERS, compression=compression)
    files = contents(obtain(cache, layout(made)))
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (descriptor,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[f"blobs/{descriptor['digest'].replace(':', '/')}"])
    for blob, data in ((name, raw) for name, raw in files.items() if name.startswith("blobs/")):
        assert digest_of(data) == blob.removeprefix("blobs/").replace("/", ":")
    assert [item["digest"] for item in manifest["layers"]] == [digest_of(raw) for raw in LAYERS]


def test_the_configuration_and_so_the_engines_id_stay_the_same(cache, layout):
    made = ImageFile(layers=LAYERS)
    digest, blobs = made.blobs()
    config = json.loads(blobs[digest])["config"]["digest"]
    image = obtain(cache, layout(made))
    assert image.config_digest == config
    assert contents(image)[f"blobs/{config.replace(':', '/')}"] == blobs[config]


def test_how_layers_were_compressed_changes_nothing(cache, layout):
    images = [
        contents(obtain(cache, layout(ImageFile(layers=LAYERS, compression=kind), name=kind)))
        for kind in ("none", "gzip", "zstd")
    ]
    assert images[0] == images[1] == images[2]


def test_an_archive_is_read_like_its_folder(cache, layout, tmp_path):
    origin = layout(ImageFile(layers=LAYERS))
    write_archive(tmp_path / "image.tar", origin.layout)
    archived = ImageOrigin(name="image", layout=tmp_path / "image.tar", reference=None, digest=None)
    assert contents(obtain(cache_of(tmp_path / "other"), archived)) == contents(
        obtain(cache, origin)
    )


def test_the_platform_is_picked_from_an_index(cache, layout):
    images = (ImageFile(), ImageFile(architecture="arm64", layers=LAYERS))
    origin = layout(*images)
    assert obtain(cache, origin, machine="aarch64").manifest_digest == images[1].blobs()[0]
    assert obtain(cache, origin).manifest_digest == images[0].blobs()[0]


def test_image_index_without_the_platform(cache, layout):
    with fails_with("image-platform-missing"):
        obtain(cache, layout(ImageFile(architecture="arm64")))


def test_an_image_whose_configuration_is_for_another_platform_is_refused(cache):
    registry = LayoutRegistry(NAME, ImageFile(architecture="arm64"))
    with fails_with("image-platform-missing"):
        obtain(cache, ImageOrigin(name=NAME, layout=None, reference=NAME, digest=None), registry)


def test_an_attestation_in_an_index_is_no_image(cache):
    index = json.loads(index_of(ImageFile()))
    index["manifests"].append(
        index["manifests"][0] | {"platform": {"os": "unknown", "architecture": "unknown"}}
    )

    class Registry(LayoutRegistry):
        def describe(self, name):
            return json.dumps(index).encode()

    registry = Registry(NAME, ImageFile())
    origin = ImageOrigin(name=NAME, layout=None, reference=NAME, digest=None)
    assert obtain(cache, origin, registry).manifest_digest == ImageFile().blobs()[0]


def test_tag_that_moved_since_the_digest_was_written(cache):
    registry = LayoutRegistry(NAME, ImageFile(layers=LAYERS))
    digest = ImageFile().blobs()[0]
    origin = ImageOrigin(name=NAME, layout=None, reference=NAME, digest=digest)
    with fails_with("image-digest-mismatch"):
        obtain(cache, origin, registry)


def test_what_the_cache_has_is_not_fetched_again(cache):
    registry = LayoutRegistry(NAME, ImageFile())
    origin = ImageOrigin(name=NAME, layout=None, reference=NAME, digest=None)
    first = obtain(cache, origin, registry)
    again = ImageStore(cache, NoImages()).obtain(origin, first.manifest_digest, "x86_64")
    assert contents(again) == contents(first)
    assert registry.fetched == [first.manifest_digest]


def damaged(origin, digest, data):
    (origin.layout / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(data)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "gone"])
def test_a_damaged_blob_of_a_layout_is_found(cache, layout, which, how):
    made = ImageFile(layers=LAYERS)
    origin = layout(made)
    digest, data = sorted(made.blobs()[1].items())[which]
    match how:
        case "flipped":
            damaged(origin, digest, bytes([data[0] ^ 1]) + data[1:])
        case "cut":
            damaged(origin, digest, data[:-1])
        case "longer":
            damaged(origin, digest, data + b"\n")
        case _:
            (origin.layout / "blobs/sha256" / digest.removeprefix("sha256:")).unlink()
    with pytest.raises(Refused) as caught:
        obtain(cache, origin)
    assert caught.value.error_id in {"image-digest-mismatch", "image-malformed"}


def test_a_layer_whose_content_is_not_its_diff_id_is_refused(cache, layout):
    lying = ImageFile(diff_ids=[digest_of(b"another")])
    with fails_with("image-digest-mismatch"):
        obtain(cache, layout(lying))


def test_more_diff_ids_than_layers_are_refused(cache, layout):
    with fails_with("image-malformed"):
        obtain(cache, layout(ImageFile(diff_ids=[digest_of(b"a"), digest_of(b"b")])))


def test_a_layer_that_unpacks_without_end_is_stopped(cache, layout):
    bomb = ImageFile(layers=[bytes(70 * 1024 * 1024)])
    with fails_with("image-malformed"):
        obtain(cache, layout(bomb))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"manifests": 3}', b'{"manifests": [{}]}'])
def test_an_index_that_is_none_is_refused(cache, layout, raw):
    origin = layout(ImageFile())
    (origin.layout / "index.json").write_bytes(raw)
    with pytest.raises(Refused) as caught:
        obtain(cache, origin)
    assert caught.value.error_id in {"document-invalid", "json-malformed", "image-malformed"}


def test_a_file_that_is_no_layout_is_refused(cache, tmp_path):
    (tmp_path / "image.tar").write_bytes(b"no archive")
    origin = ImageOrigin(name="image", layout=tmp_path / "image.tar", reference=None, digest=None)
    with fails_with("image-malformed"):
        obtain(cache, origin)
