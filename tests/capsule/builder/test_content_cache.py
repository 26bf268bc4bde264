"""The cache: whatever comes out of it has the digest that was asked for."""

import hashlib
import io

import pytest

from capsule.builder.content_cache import ContentCache
from capsule.builder.remembered import cache_folder
from capsule.builder.url_fetch import UrlFetcher
from capsule.builder.wheels import Wanted
from capsule_manifest.errors import Failed, Refused
from support.indexes import NO_NIX, NoFetcher, NoImages, cache_of
from support.wheels import WheelFile, target

URL = "https://example.org/tool"


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def wanted(*sha256, **changes):
    values = {"name": "demo", "version": "1.0", "where": "requirements.lock:1"} | changes
    return Wanted(sha256=frozenset(sha256), **values)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def obtain(cache, item, base):
    return cache.obtain_wheels([item], target(), base=base)["demo"]


def test_a_wheel_is_fetched_once_and_then_needs_no_network(tmp_path, index):
    source = WheelFile().write(index)
    item = wanted(digest(source))
    pin, _ = obtain(cache_of(tmp_path / "cache", index), item, tmp_path)
    again, path = obtain(cache_of(tmp_path / "cache"), item, tmp_path)
    assert again == pin
    assert path.read_bytes() == source.read_bytes()
    assert (pin.file, pin.size_bytes) == (source.name, source.stat().st_size)


@pytest.mark.parametrize("damage", [b"", b"other bytes"], ids=["torn", "changed"])
def test_a_damaged_wheel_in_the_cache_is_fetched_again(tmp_path, index, damage):
    source = WheelFile().write(index)
    item = wanted(digest(source))
    _, path = obtain(cache_of(tmp_path / "cache", index), item, tmp_path)
    path.write_bytes(damage)
    _, path = obtain(cache_of(tmp_path / "cache", index), item, tmp_path)
    assert path.read_bytes() == source.read_bytes()


def test_without_network_a_missing_wheel_is_an_error(tmp_path):
    with pytest.raises(Failed) as caught:
        obtain(cache_of(tmp_path / "cache"), wanted("a" * 64), tmp_path)
    assert caught.value.error_id == "wheel-fetch-failed"


def test_other_bytes_than_locked_are_refused_and_not_kept(tmp_path, index):
    WheelFile().write(index)
    with pytest.raises(Refused) as caught:
        obtain(cache_of(tmp_path / "cache", index), wanted("a" * 64), tmp_path)
    assert caught.value.error_id == "wheel-digest-mismatch"
    assert list((tmp_path / "cache").rglob("*.whl")) == []


def test_another_file_with_the_pinned_name_is_refused(tmp_path, index):
    source = WheelFile().write(index)
    item = wanted(digest(source), file="demo-1.0-py2-none-any.whl")
    with pytest.raises(Refused) as caught:
        obtain(cache_of(tmp_path / "cache", index), item, tmp_path)
    assert caught.value.error_id == "wheel-digest-mismatch"


def test_a_wheel_beside_a_pylock_is_used_and_checked(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    source = WheelFile().write(folder)
    cache = cache_of(tmp_path / "cache")
    good = wanted(digest(source), file=source.name, path=f"wheels/{source.name}")
    assert obtain(cache, good, tmp_path)[0].sha256 == digest(source)
    assert source.exists()
    bad = wanted("a" * 64, file=source.name, path=f"wheels/{source.name}")
    with pytest.raises(Refused) as caught:
        obtain(cache, bad, tmp_path)
    assert caught.value.error_id == "wheel-digest-mismatch"


def test_nothing_half_done_stays_in_the_cache(tmp_path, index):
    source = WheelFile().write(index)
    obtain(cache_of(tmp_path / "cache", index), wanted(digest(source)), tmp_path)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [digest(source)]


def test_a_file_is_fetched_by_address_and_kept_by_digest(tmp_path):
    content = b"\x7fELF"
    sha256 = hashlib.sha256(content).hexdigest()
    pin, path = cache_of(tmp_path, files={URL: content}).obtain_file(URL, sha256)
    assert (pin.sha256, pin.size_bytes, path.read_bytes()) == (sha256, 4, content)
    again, _ = ContentCache(tmp_path, NoFetcher(), NoFetcher(), NoImages(), NO_NIX).obtain_file(
        URL, sha256
    )
    assert again == pin


def test_a_file_with_another_digest_is_refused_with_both(tmp_path):
    with pytest.raises(Refused) as caught:
        cache_of(tmp_path, files={URL: b"other"}).obtain_file(URL, "a" * 64)
    assert caught.value.error_id == "url-digest-mismatch"
    assert (caught.value.expected, caught.value.got) == (
        "a" * 64,
        hashlib.sha256(b"other").hexdigest(),
    )


def test_only_http_addresses_are_fetched():
    with pytest.raises(Failed) as caught:
        UrlFetcher().fetch("file:///etc/passwd", io.BytesIO())
    assert caught.value.error_id == "url-fetch-failed"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/capsule/wheels"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/capsule/wheels"),
        ({"HOME": "/h"}, "/h/.cache/capsule/wheels"),
    ],
)
def test_the_cache_is_where_the_user_keeps_caches(environment, expected):
    assert str(cache_folder(environment)) == expected
