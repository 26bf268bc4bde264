"""Files over HTTP, from a server on loopback that does what servers do."""

import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from capsule.builder.content_cache import UrlFetcher
from capsule_manifest.errors import Failed

pytestmark = pytest.mark.network

CONTENT = b"content " * 1000


class Handler(BaseHTTPRequestHandler):
    """Serve one file in several ways, right and wrong."""

    def do_GET(self):
        match self.path:
            case "/moved":
                self.send_response(302)
                self.send_header("Location", "/file")
                self.end_headers()
            case "/to-disk":
                self.send_response(302)
                self.send_header("Location", "file:///etc/passwd")
                self.end_headers()
            case "/file":
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT)
            case "/short":
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT) + 1))
                self.end_headers()
                self.wfile.write(CONTENT)
            case "/nonsense":
                self.wfile.write(b"nonsense\r\n\r\n")
            case _:
                self.send_error(404)

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def fetch(url):
    stream = io.BytesIO()
    UrlFetcher().fetch(url, stream)
    return stream.getvalue()


@pytest.mark.parametrize("path", ["/file", "/moved"])
def test_a_file_is_fetched_also_when_it_moved(server, path):
    assert fetch(server + path) == CONTENT


@pytest.mark.parametrize("path", ["/missing", "/short", "/nonsense", "/to-disk"])
def test_what_is_not_the_whole_file_is_a_retryable_error(server, path):
    with pytest.raises(Failed) as caught:
        fetch(server + path)
    assert caught.value.error_id == "url-fetch-failed"
    assert caught.value.retryable
