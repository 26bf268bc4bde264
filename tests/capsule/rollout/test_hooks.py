"""Hooks for a fleet's own dispatcher: a command or HTTP, asked until it answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest

from capsule.lane.ports import HoldReport, Unreachable
from capsule.rollout.hooks import CommandHook, HookDispatch, HttpHook
from support.failures import fails_with

FACTS = {"epoch": "e1", "route": "sha256:" + "1" * 64}

SCRIPT = """\
#!/bin/sh
echo "$1 $2 $CAPSULE_EPOCH $CAPSULE_TURN $CAPSULE_FENCE" >> "$0.log"
[ -e "$0.fails" ] && { echo "no such node" >&2; exit 3; }
[ "$1" = drained ] && echo '{"busy": 2, "heartbeat_age_ms": 7, "credential_ms": null}'
exit 0
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "hook"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


@pytest.fixture
def heard():
    return Queue()


def dispatch(hook, heard):
    return HookDispatch(hook, facts=FACTS, hear=heard.put, serving=lambda _: True)


def test_a_hold_asks_the_command_to_hold_and_then_what_still_runs(script, heard):
    dispatch(CommandHook(program=str(script)), heard).hold("n1", 1, fence=4)
    assert heard.get(timeout=10) == HoldReport(
        node="n1", turn=1, held=True, busy=2, serving=True, heartbeat_age_ms=7, credential_ms=None
    )
    log = (script.parent / "hook.log").read_text().splitlines()
    assert log == ["hold n1 e1 1 4", "drained n1 e1 1 4"]


def test_a_release_is_reported_only_after_the_command_has_confirmed_it(script, heard):
    hook = dispatch(CommandHook(program=str(script)), heard)
    fails = script.parent / "hook.fails"
    fails.touch()
    hook.release("n1", 2, fence=4)
    answer = heard.get(timeout=10)
    assert isinstance(answer, Unreachable)
    assert "no such node" in answer.reason
    fails.unlink()
    hook.release("n1", 2, fence=4)
    assert not heard.get(timeout=10).held


def test_a_command_that_is_not_there_is_an_error_with_its_name(tmp_path):
    with fails_with("hook-failed") as failure:
        CommandHook(program=str(tmp_path / "none")).ask("hold", {"node": "n1"})
    assert "none" in failure.value.where


def test_an_answer_that_is_no_json_holds_nothing(tmp_path, heard):
    path = tmp_path / "hook"
    path.write_text("#!/bin/sh\necho busy\n")
    path.chmod(0o755)
    dispatch(CommandHook(program=str(path)), heard).hold("n1", 1, fence=4)
    assert isinstance(heard.get(timeout=10), Unreachable)


def test_over_http_the_facts_are_posted_below_the_address(heard):
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body["node"], body["turn"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"busy": 0}' if self.path == "/x/drained" else b"")

        def log_message(self, *arguments): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        hook = HttpHook(url=f"http://127.0.0.1:{server.server_port}/x/")
        dispatch(hook, heard).hold("n1", 1, fence=4)
        assert heard.get(timeout=10).busy == 0
        server.shutdown()
        thread.join()
    assert asked == [("/x/hold", "n1", "1"), ("/x/drained", "n1", "1")]
