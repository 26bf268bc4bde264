"""The demo's measure of outages, against a server that comes and goes."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from capsule.demo.outage import Watcher, ask
from capsule.demo.workspace import free_ports

pytestmark = pytest.mark.network


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"release": "1", "generation": "g", "commit": "c"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(port, seconds):
    server = HTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    time.sleep(seconds)
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_outage_is_from_the_last_good_answer_to_the_first():
    (port,) = free_ports(1)
    watcher = Watcher(port)
    watcher.start()
    time.sleep(0.2)  # before the first answer there is nothing to lose
    serve(port, 0.3)
    time.sleep(0.4)
    serve(port, 0.3)
    outage_ms = watcher.stop()
    assert 300 < outage_ms < 1500
    assert watcher.answers > 4


def test_an_outage_that_still_lasts_counts():
    (port,) = free_ports(1)
    watcher = Watcher(port)
    watcher.start()
    serve(port, 0.3)
    time.sleep(0.4)
    assert watcher.stop() > 300


def test_a_service_that_says_something_else_does_not_answer_well():
    (port,) = free_ports(1)
    assert ask(port) is None
