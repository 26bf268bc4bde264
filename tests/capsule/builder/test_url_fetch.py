"""Files over HTTP, from servers on loopback that do what servers do."""

import hashlib
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from capsule.builder.content_cache import ContentCache
from capsule.builder.url_fetch import UrlFetcher
from capsule_manifest.errors import Failed
from support.failures import fails_with
from support.indexes import NO_NIX, NoFetcher, NoImages

pytestmark = pytest.mark.network

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = CONTENT[::-1]


class Handler(BaseHTTPRequestHandler):
    """Serve one file in several ways, right and wrong; `asked` has each path and range."""

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        server.headers.append(dict(self.headers))
        count = sum(path == self.path for path, _ in server.asked)
        match self.path:
            case "/moved":
                self._redirect("/file")
            case "/moved-away":
                self._redirect(f"{server.elsewhere}/file")
            case "/to-disk":
                self._redirect("file:///etc/passwd")
            case "/in-circles":
                self._redirect("/in-circles")
            case "/file":
                self._send(CONTENT)
            case "/short":
                self._send(CONTENT, told=len(CONTENT) + 1)
            case "/cut":
                self._send_part(CONTENT, cut=3000)
            case "/cut-and-changed":
                self._send_part(CONTENT if count == 1 else OTHER, cut=3000, tag=f'"{count}"')
            case "/cut-without-ranges":
                self._send(CONTENT[:3000] if count < 3 else CONTENT, told=len(CONTENT))
            case "/busy":
                self._refuse(429, "7") if count < 3 else self._send(CONTENT)
            case "/busy-for-a-day":
                self._refuse(429, "86400")
            case "/busy-till-a-date":
                date = "Wed, 21 Oct 2026 07:28:00 GMT"
                self._refuse(503, date) if count < 2 else self._send(CONTENT)
            case "/broken":
                self._refuse(500, None)
            case "/nonsense":
                self.wfile.write(b"nonsense\r\n\r\n")
            case _:
                self.send_error(404)

    def _redirect(self, where):
        self.send_response(302)
        self.send_header("Location", where)
        self.end_headers()

    def _refuse(self, code, retry_after):
        self.send_response(code)
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content, told=None):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if told is None else told))
        self.end_headers()
        self.wfile.write(content)

    def _send_part(self, content, cut, tag='"one"'):
        """Answer a range as asked, never with more than `cut` bytes."""
        asked = self.headers.get("Range")
        if asked is None or self.headers.get("If-Range", tag) != tag:
            start = 0
            self.send_response(200)
        else:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : start + cut])

    def log_message(self, *_arguments):
        """Say nothing."""


def serving(address):
    made = ThreadingHTTPServer((address, 0), Handler)
    made.asked, made.headers, made.elsewhere = [], [], ""
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    return made


@pytest.fixture
def server():
    with serving("127.0.0.1") as made, serving("127.0.0.2") as other:
        made.elsewhere = f"http://127.0.0.2:{other.server_port}"
        made.other = other
        made.url = f"http://127.0.0.1:{made.server_port}"
        yield made
        made.shutdown()
        other.shutdown()


class Fetched:
    def __init__(self, url, begun=b""):
        self.waits = []
        self.stream = io.BytesIO(begun)
        UrlFetcher(wait=self.waits.append).fetch(url, self.stream)

    @property
    def content(self):
        return self.stream.getvalue()


def cache_at(folder, waits=None):
    waiting = waits if waits is not None else []
    fetcher = UrlFetcher(wait=waiting.append)
    return ContentCache(folder, NoFetcher(), fetcher, NoImages(), NO_NIX)


@pytest.mark.parametrize("path", ["/file", "/moved"])
def test_a_file_is_fetched_also_when_it_moved(server, path):
    assert Fetched(server.url + path).content == CONTENT


def test_a_redirect_to_another_host_is_followed_and_sends_nothing_secret(server):
    """Archives are served by other hosts than they are announced by. The digest decides."""
    assert Fetched(server.url + "/moved-away").content == CONTENT
    assert server.other.asked == [("/file", None)]
    secret = {"authorization", "cookie", "proxy-authorization"}
    assert not secret & {name.lower() for headers in server.other.headers for name in headers}


def test_a_redirect_from_tls_to_plain_http_is_not_followed():
    import urllib.request
    from urllib.error import HTTPError

    from capsule.builder.url_fetch import _Redirects

    for start, end, is_followed in (
        ("https://a.test/x", "http://b.test/x", False),
        ("https://a.test/x", "https://b.test/x", True),
        ("http://a.test/x", "https://b.test/x", True),
        ("http://a.test/x", "http://b.test/x", True),
        ("http://a.test/x", "file:///etc/passwd", False),
        ("http://a.test/x", "ftp://b.test/x", False),
    ):
        request = urllib.request.Request(start)  # nothing is opened
        try:
            found = _Redirects().redirect_request(request, io.BytesIO(), 302, "", {}, end)
        except HTTPError as error:
            found = None
            error.close()
        assert (found is not None) is is_followed, (start, end)


@pytest.mark.parametrize(
    "path", ["/missing", "/short", "/nonsense", "/to-disk", "/in-circles", "/broken"]
)
def test_what_is_not_the_whole_file_is_a_retryable_error(server, path):
    with fails_with("url-fetch-failed") as caught:
        Fetched(server.url + path)
    assert caught.value.retryable
    tries = sum(asked == path for asked, _ in server.asked)
    assert tries <= 5 * (6 if path == "/in-circles" else 1)


def test_a_server_that_will_not_change_its_mind_is_asked_once(server):
    with fails_with("url-fetch-failed"):
        Fetched(server.url + "/missing")
    assert len(server.asked) == 1


def test_a_truncated_download_goes_on_where_it_ended(server):
    fetched = Fetched(server.url + "/cut")
    assert fetched.content == CONTENT
    assert [ranges for _, ranges in server.asked] == [
        None, "bytes=3000-", "bytes=6000-", "bytes=9000-",
    ]  # fmt: skip
    assert fetched.waits == [1, 2, 4]


def test_a_file_that_changes_between_the_parts_is_not_glued_together(server):
    with fails_with("url-fetch-failed"):
        Fetched(server.url + "/cut-and-changed")


def test_a_server_without_ranges_sends_it_all_again(server):
    assert Fetched(server.url + "/cut-without-ranges").content == CONTENT


def test_a_server_that_answers_429_is_waited_for_as_long_as_it_asks(server):
    fetched = Fetched(server.url + "/busy")
    assert fetched.content == CONTENT
    assert fetched.waits == [7, 7]


def test_a_date_to_come_back_at_is_answered_with_a_pause_of_our_own(server):
    fetched = Fetched(server.url + "/busy-till-a-date")
    assert fetched.content == CONTENT
    assert fetched.waits == [1]


def test_a_server_that_wants_a_day_is_given_up_and_its_wish_told(server):
    with pytest.raises(Failed) as caught:
        Fetched(server.url + "/busy-for-a-day")
    assert "86400 s" in str(caught.value)
    assert len(server.asked) == 1


def test_what_an_earlier_run_got_is_not_fetched_again(server, tmp_path):
    """A line that breaks for good, and the same command again."""
    cache = cache_at(tmp_path)
    server.RequestHandlerClass = type("Cut", (Handler,), {"_send_part": cut_for_good})
    with fails_with("url-fetch-failed"):
        cache.obtain_file(server.url + "/cut", SHA256)
    server.RequestHandlerClass = Handler
    server.asked.clear()
    pin, path = cache_at(tmp_path).obtain_file(server.url + "/cut", SHA256)
    assert path.read_bytes() == CONTENT
    assert pin.size_bytes == len(CONTENT)
    assert server.asked[0][1] == "bytes=3000-"


def cut_for_good(self, content, cut):
    """Send the beginning to who has nothing, and nothing to who has it."""
    if self.headers.get("Range") is None:
        self._send(content[:cut], told=len(content))
    else:
        self._refuse(503, None)


def test_a_damaged_part_of_an_earlier_run_is_thrown_away(server, tmp_path):
    (tmp_path / f".{SHA256}.part").write_bytes(b"x" * 3000)
    _, path = cache_at(tmp_path).obtain_file(server.url + "/cut", SHA256)
    assert path.read_bytes() == CONTENT
    assert not list(tmp_path.glob(".*.part"))


def test_an_archive_that_was_changed_where_it_lies_is_refused_with_both_digests(server, tmp_path):
    with fails_with("url-digest-mismatch") as caught:
        cache_at(tmp_path).obtain_file(server.url + "/file", "0" * 64)
    assert SHA256 in str(caught.value)
    assert not list(tmp_path.glob("*/content"))
