from pathlib import Path

import pytest

from capsule.transport.base import QUICK, Limits
from capsule.transport.connect import Connector, SshTransport, access_from
from capsule.transport.local import LocalTransport
from capsule.transport.openssh import OpensshTransport
from capsule.transport.ssh_entry import Access
from capsule_manifest.route import CA_MARK, Endpoint

KEY = "ssh-ed25519 AAAA"
SSH = Endpoint(kind="ssh", address="192.0.2.1", host_key=KEY)


class Way:
    """Remember what was started; implements `Transport`."""

    root, place = "", "somewhere"

    def __init__(self):
        self.opened = []

    def open(self, argv, *, limits):
        self.opened.append(tuple(argv))


def test_a_verb_that_answers_at_once_takes_the_kept_connection_and_a_stream_does_not():
    verbs, streams = Way(), Way()
    made = []
    both = SshTransport(verbs=lambda: made.append(1) or verbs, streams=streams)
    both.open(["receive"], limits=Limits(total_s=600.0, idle_s=60.0))
    assert (made, streams.opened) == ([], [("receive",)])
    both.open(["hello"], limits=QUICK)
    both.open(["status"], limits=QUICK)
    assert (made, verbs.opened) == ([1], [("hello",), ("status",)])
    assert streams.opened == [("receive",)]


@pytest.mark.parametrize(
    ("endpoint", "access", "kind"),
    [
        (Endpoint(kind="local", root="/srv"), Access(), LocalTransport),
        (SSH, Access(identity="/k"), SshTransport),
        # Fabric checks no certificates, finds no default keys, and takes any agent it meets.
        (SSH, Access(), OpensshTransport),
        (SSH, Access(identity="/k", agent="/a"), OpensshTransport),
        (
            Endpoint(kind="ssh", address="h", host_key=CA_MARK + KEY),
            Access(identity="/k"),
            OpensshTransport,
        ),
    ],
)
def test_the_way_follows_from_the_entry_and_the_controllers_key(endpoint, access, kind):
    assert type(Connector(access)(endpoint, "n1")) is kind


def test_an_agent_that_merely_runs_is_not_used():
    assert access_from({"SSH_AUTH_SOCK": "/agent", "HOME": "/root"}) == Access()
    asked = {"CAPSULE_SSH_AGENT": "/agent", "CAPSULE_SSH_IDENTITY": "key"}
    assert access_from(asked) == Access(identity=str(Path("key").absolute()), agent="/agent")
