"""Binary caches: folders and HTTP, each believed in nothing but what digests prove."""

import io
import lzma
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import zstandard

from capsule.builder.nix.caches import FolderCache, HttpCache, open_caches, unpack_nar
from capsule.builder.nix.http import http_get
from capsule.builder.nix.narinfo import NARINFO_BYTES_MAX, decode_narinfo
from support.failures import fails_with
from support.nars import StorePath, nar, store_path_name

CONTENT = b"content" * 1000
COMPRESSIONS = ("none", "xz", "zstd")


def path_of(compression):
    return StorePath(label="hello-1.0", node=CONTENT, compression=compression)


def info_of(path):
    return decode_narinfo(path.narinfo(), where="test")


def unpacked(cache, path):
    stream = io.BytesIO()
    unpack_nar(cache, info_of(path), stream)
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_archive_is_unpacked(folder, compression):
    path = path_of(compression)
    path.write(folder)
    assert unpacked(FolderCache(folder), path) == nar(CONTENT)


def test_what_a_cache_says_is_found_by_the_digest_in_the_name(folder):
    path = path_of("none")
    path.write(folder)
    assert FolderCache(folder).narinfo(path.name) == path.narinfo()
    assert FolderCache(folder).narinfo(store_path_name("other")) is None


def packed(compression, raw):
    match compression:
        case "xz":
            return lzma.compress(raw)
        case "zstd":
            return zstandard.compress(raw)
        case _:
            return raw


ARCHIVE = nar(CONTENT)
DEFECTS = {
    "shorter": ARCHIVE[:-8],
    "longer": ARCHIVE + bytes(8),
    "a flipped bit": ARCHIVE.replace(b"content", b"contenu", 1),
    "nothing": b"",
    "another archive": nar(b"else"),
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("raw", DEFECTS.values(), ids=DEFECTS)
def test_an_archive_that_is_not_what_the_cache_says_is_refused(folder, compression, raw):
    path = path_of(compression)
    path.write(folder)
    (folder / path.url).write_bytes(packed(compression, raw))
    with fails_with("nix-nar-mismatch"):
        unpacked(FolderCache(folder), path)


@pytest.mark.parametrize("compression", ["xz", "zstd"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_compressed_data_that_is_cut_off_is_refused(folder, compression, part):
    path = path_of(compression)
    path.write(folder)
    raw = path.packed()
    (folder / path.url).write_bytes(raw[: int(len(raw) * part)])
    with fails_with("nix-nar-mismatch"):
        unpacked(FolderCache(folder), path)


@pytest.mark.parametrize("compression", ["xz", "zstd"])
def test_data_that_is_not_compressed_is_refused(folder, compression):
    path = path_of(compression)
    path.write(folder)
    (folder / path.url).write_bytes(ARCHIVE)
    with fails_with("nix-nar-mismatch"):
        unpacked(FolderCache(folder), path)


def test_what_follows_compressed_data_is_refused(folder):
    path = path_of("xz")
    path.write(folder)
    (folder / path.url).write_bytes(path.packed() + b"more")
    with fails_with("nix-nar-mismatch"):
        unpacked(FolderCache(folder), path)


class Counting(io.BytesIO):
    """Count what is written, and forget it."""

    def __init__(self):
        super().__init__()
        self.size_bytes = 0

    def write(self, data):
        self.size_bytes += len(data)
        return len(data)


@pytest.mark.parametrize("compression", ["xz", "zstd"])
def test_a_bomb_writes_no_more_than_the_stated_size(folder, compression):
    path = path_of(compression)
    path.write(folder)
    (folder / path.url).write_bytes(packed(compression, bytes(64 * 1024 * 1024)))
    stream = Counting()
    with fails_with("nix-nar-mismatch"):
        unpack_nar(FolderCache(folder), info_of(path), stream)
    assert stream.size_bytes <= len(ARCHIVE)


def test_a_window_that_is_too_large_is_refused(folder):
    path = path_of("zstd")
    path.write(folder)
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=29)
    # Without a size in its header a frame has the window that it was written with.
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (folder / path.url).write_bytes(compressor.compress(ARCHIVE) + compressor.flush())
    with fails_with("nix-nar-mismatch"):
        unpacked(FolderCache(folder), path)


def test_an_archive_that_the_cache_has_lost_is_named(folder):
    path = path_of("none")
    path.write(folder)
    (folder / path.url).unlink()
    with fails_with("nix-path-unavailable"):
        unpacked(FolderCache(folder), path)


def test_an_endless_document_is_not_read_to_its_end(folder):
    path = path_of("none")
    path.write(folder)
    (folder / f"{path.name[:32]}.narinfo").write_bytes(bytes(NARINFO_BYTES_MAX + 1000))
    assert len(FolderCache(folder).narinfo(path.name)) == NARINFO_BYTES_MAX + 1
    endless = HttpCache("https://cache.example.org", lambda _url: iter(lambda: b"x" * 1000, None))
    assert len(endless.narinfo(path.name)) <= NARINFO_BYTES_MAX + 1000


@pytest.mark.parametrize(
    "text",
    [
        "cache", "/srv/cache", "file://host/srv", "file:srv", "ftp://example.org", "https://",
        "s3://bucket", "https://example.org nothing",
    ],
)  # fmt: skip
def test_an_address_of_another_form_is_refused(text):
    with fails_with("nix-cache-invalid"):
        open_caches(text, http_get)


def test_caches_are_asked_in_the_order_in_which_they_are_named():
    found = open_caches(" file:///srv/a%20b\nhttps://cache.example.org/ ", http_get)
    assert [cache.address for cache in found] == ["/srv/a b", "https://cache.example.org"]
    assert open_caches("", http_get) == ()


class Server:
    """A folder over HTTP on loopback, with a way to answer otherwise."""

    def __init__(self, folder):
        self.answers = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = folder / self.path.lstrip("/")
                code, length, body = owner.answers.get(self.path, (200, None, None))
                if body is None and code == 200:
                    code, body = (200, path.read_bytes()) if path.is_file() else (404, b"")
                body = body or b""
                self.send_response(code)
                self.send_header("Content-Length", str(length or len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(folder):
    made = Server(folder)
    yield made
    made.close()


@pytest.mark.network
def test_a_cache_over_http_is_read_like_a_folder(server, folder):
    path = path_of("zstd")
    path.write(folder)
    cache = HttpCache(server.address, http_get)
    assert cache.narinfo(path.name) == path.narinfo()
    assert unpacked(cache, path) == nar(CONTENT)


@pytest.mark.network
@pytest.mark.parametrize("code", [403, 404])
def test_a_path_that_a_cache_over_http_has_not_got_is_no_failure(server, code):
    path = path_of("none")
    server.answers[f"/{path.name[:32]}.narinfo"] = (code, None, b"")
    assert HttpCache(server.address, http_get).narinfo(path.name) is None


@pytest.mark.network
@pytest.mark.parametrize("code", [401, 429, 500, 503])
def test_a_cache_that_is_out_of_order_is_named(server, code):
    name = store_path_name("x")
    server.answers[f"/{name[:32]}.narinfo"] = (code, None, b"")
    with fails_with("nix-path-unavailable") as caught:
        HttpCache(server.address, http_get).narinfo(name)
    assert caught.value.retryable


@pytest.mark.network
def test_a_download_that_ends_early_is_no_shorter_archive(server, folder):
    path = path_of("none")
    path.write(folder)
    server.answers[f"/{path.url}"] = (200, len(ARCHIVE), ARCHIVE[:100])
    with fails_with("nix-path-unavailable"):
        unpacked(HttpCache(server.address, http_get), path)


@pytest.mark.network
def test_an_archive_that_a_cache_over_http_has_lost_is_named(server, folder):
    path = path_of("none")
    path.write(folder)
    (folder / path.url).unlink()
    with fails_with("nix-path-unavailable"):
        unpacked(HttpCache(server.address, http_get), path)


@pytest.mark.network
def test_a_cache_that_does_not_answer_is_named(server):
    server.server.server_close()
    with fails_with("nix-path-unavailable"):
        HttpCache("http://127.0.0.1:1", http_get).narinfo(store_path_name("x"))
