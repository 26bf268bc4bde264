"""After a route was frozen nobody looks a name up: real sshd, and a resolver that counts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.resolver import CountingResolver, can_bind_resolv_conf
from support.rollout_desk import RolloutDesk
from support.sshd import SSHD, Keys, SshServer

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(SSHD is None, reason="no sshd here"),
    pytest.mark.skipif(not can_bind_resolv_conf(), reason="no resolv.conf of one's own here"),
]

PLACES = {"n1": "127.0.1.1", "n2": "127.0.1.2"}
NAMES = {"w1.test": "127.0.1.1", "w2.test": "127.0.1.2"}
# One sshd is every host: which folder it is follows from the address that was connected to. What
# names no program of a host would be carried out on this machine itself, and is refused.
FORCED = """\
#!/bin/sh
set -- $SSH_CONNECTION
root={hosts}/$3
case $SSH_ORIGINAL_COMMAND in
*" /opt/capsule/bin/capsule "*) ;;
*) exit 126 ;;
esac
exec /bin/sh -c "$(printf %s "$SSH_ORIGINAL_COMMAND" |
    sed "s#/opt/capsule/bin/capsule#$root/opt/capsule/bin/capsule#")"
"""


class Place:
    """A controller whose resolver is the counting one."""

    def __init__(self, desk: RolloutDesk, resolver: CountingResolver, identity: Path) -> None:
        self._desk, self._resolver = desk, resolver
        self._environment = {**os.environ, "CAPSULE_SSH_IDENTITY": str(identity)}

    def run(self, *words: str, keys: bool = False, code: int = 0) -> str:
        """Run a command; return what it printed."""
        keyed = ("--controller-key", "controller.key") if keys else ()
        argv = [sys.executable, "-m", "capsule", *words, "--policy", "trust.json", *keyed]
        done = subprocess.run(
            self._resolver.around(argv), cwd=self._desk.folder, env=self._environment,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout


def fleet(server: SshServer, names: dict[str, str]) -> str:
    """Return an inventory in which nodes are reached by name."""
    lines = ["format = 1", 'product = "acme/hello"', "[fleet]", "floor = 0"]
    lines += ["max_unavailable = 2", 'guard_min = "L0"']
    for node, name in names.items():
        lines += [
            f"[nodes.{node}]", f'address = "{name}"', f"port = {server.port}",
            f'user = "{server.user}"', f'host_key = "{server.keys.public("host")}"',
            'role = "web"', 'platform = "bookworm"', 'lane = "a"',
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    """Return two folder hosts that were met and staged on by their folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = RolloutDesk(tmp_path, capsys, {"a": list(PLACES)})
    found.generation = found.capsule(1).generation
    found.stage(1)
    for node, address in PLACES.items():
        (tmp_path / "hosts" / address).symlink_to(found.root(node))
    yield found
    found.stop()


def test_a_frozen_route_is_followed_while_resolver_and_inventory_say_something_else(desk):
    keys = Keys(desk.folder)
    forced = desk.folder / "forced.sh"
    forced.write_text(FORCED.format(hosts=desk.folder / "hosts"))
    forced.chmod(0o755)
    server = SshServer(
        desk.folder / "sshd", keys, settings=(f"ForceCommand {forced}",), listen="0.0.0.0"
    )
    resolver = CountingResolver(desk.folder, dict(NAMES))
    inventory = desk.folder / "fleet.toml"
    with server, resolver:
        place = Place(desk, resolver, keys.private("client"))
        inventory.write_text(fleet(server, {"n1": "w1.test", "n2": "w2.test"}))
        place.run("stage", "1.capsule", "--lane", "all", "--route-key", "route.key", keys=True)
        assert set(NAMES) <= set(resolver.asked)
        before = json.loads(place.run("route", "show", "--json"))

        # From here on both names lead nowhere, and the inventory says other names.
        resolver.answers.update({"w1.test": "127.0.9.1", "w2.test": "127.0.9.2"})
        inventory.write_text(fleet(server, {"n1": "other.test", "n2": "w2.test"}))
        resolver.asked.clear()
        logins = server.handshakes()
        place.run("preflight", "1.capsule")
        place.run("rollout", "start", "1.capsule", keys=True)
        drift = json.loads(place.run("route", "diff", "--json", code=40))["drift"]
        place.run("rollout", "status")
        assert resolver.asked == []
        assert server.handshakes() >= logins + 2 * len(PLACES)

        assert json.loads(place.run("route", "show", "--json")) == before
        assert [item["where"] for item in drift] == ["nodes.n1.endpoint"]
        assert {desk.current(node) for node in PLACES} == {desk.generation}
        # The counter counts: freezing again asks for what the inventory says now, and only that.
        place.run("freeze", "--route-key", "route.key", keys=True, code=30)
        assert "other.test" in resolver.asked
