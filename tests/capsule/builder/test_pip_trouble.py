"""pip against an index on loopback that is busy, that breaks off, and that sends away."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from capsule.builder.pip_fetch import PipFetcher
from capsule.builder.wheels import Wanted
from support.failures import fails_with
from support.wheels import WheelFile, target

pytestmark = pytest.mark.network


class Index(BaseHTTPRequestHandler):
    """A simple index of one wheel; `server.answers` are given before the right one."""

    def do_GET(self):
        server = self.server
        if self.path == "/simple/demo/":
            link = f'<a href="{server.link}">{server.wheel.name}</a>'.encode()
            self._send(200, link, {"Content-Type": "text/html"})
            return
        server.asked.append(self.path)
        content = server.wheel.read_bytes()
        match server.answers.pop(0) if server.answers else "whole":
            case "busy":
                self._send(429, b"", {"Retry-After": "1"})
            case "cut":
                self._send(200, content[: len(content) // 2], {"Content-Length": len(content)})
                self.close_connection = True
            case "moved":
                self._send(302, b"", {"Location": f"{server.elsewhere}/{server.wheel.name}"})
            case "other":
                self._send(200, content + b"x", {})
            case _:
                self._send(200, content, {})

    def _send(self, code, content, headers):
        self.send_response(code)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = WheelFile().write(folder)
    servers = []
    for address in ("127.0.0.1", "127.0.0.2"):
        made = ThreadingHTTPServer((address, 0), Index)
        made.wheel, made.answers, made.asked = wheel, [], []
        made.link = f"/files/{wheel.name}"
        made.url = f"http://{address}:{made.server_port}"
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(made)
    first, second = servers
    first.elsewhere, first.other = second.url, second
    yield first
    for made in servers:
        made.shutdown()
        made.server_close()


def fetch(index, tmp_path):
    folder = tmp_path / "fetched"
    folder.mkdir()
    digest = hashlib.sha256(index.wheel.read_bytes()).hexdigest()
    environment = {
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": f"{index.url}/simple",
        "PIP_NO_CACHE_DIR": "1",
    }
    wanted = Wanted(
        name="demo", version="1.0", sha256=frozenset({digest}), where="requirements.lock:1"
    )
    PipFetcher(environment).fetch([wanted], target(), folder)
    return [path.read_bytes() for path in folder.glob("*.whl")]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [(["busy", "busy"], 3), (["cut"], 2), (["cut", "busy"], 3), (["moved"], 1)],
)
def test_an_index_in_trouble_is_waited_for(index, tmp_path, answers, asked):
    index.answers += answers
    assert fetch(index, tmp_path) == [index.wheel.read_bytes()]
    assert len(index.asked) == asked
    assert len(index.other.asked) == (answers == ["moved"])


def test_an_index_that_never_sends_all_of_it_is_given_up(index, tmp_path):
    index.answers += ["cut"] * 20
    with fails_with("wheel-digest-mismatch"):
        fetch(index, tmp_path)
    assert len(index.asked) == 3


def test_an_index_with_other_bytes_is_refused_however_often_it_is_asked(index, tmp_path):
    index.answers += ["other"] * 20
    with fails_with("wheel-digest-mismatch"):
        fetch(index, tmp_path)
