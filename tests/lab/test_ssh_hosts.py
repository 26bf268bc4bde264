"""Hosts that are reached over SSH: as a user who has to become root, through another host."""

import json
import os
import subprocess
import sys

import pytest

from capsule.stage import NodeStaged
from support.lab.controller import LabController
from support.lab.transport import SshTransport

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

FLEET = """
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
[jumps.self]
address = "{address}"
host_key = "{host_key}"
user = "deploy"
[nodes.n1]
address = "{address}"
host_key = "{host_key}"
user = "deploy"
jump = ["self"]
role = "web"
platform = "bookworm"
"""


class ByDeploy(LabController):
    """A controller that logs in as a user with sudo."""

    def connect(self, endpoint, node):
        return SshTransport(self.host, user="deploy")


def test_a_user_who_becomes_root_stages_and_installs_and_status_says_so(host, tmp_path):
    controller = ByDeploy(host, tmp_path)
    mini = controller.capsule(1)
    staged = controller.stage(mini)
    assert isinstance(staged, NodeStaged), staged
    assert controller.install(mini).result == "committed"
    assert controller.serving() == mini.generation
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET.format(address=host.address, host_key=host.host_key))
    status = subprocess.run(
        [sys.executable, "-m", "capsule", "status", "--fleet", str(fleet), "--json"],
        env={**os.environ, "CAPSULE_SSH_IDENTITY": str(host.client_key)},
        capture_output=True,
        check=True,
    )
    node = json.loads(status.stdout)["nodes"]["n1"]
    assert (node["state"], node["current"]) == ("installed", mini.generation)


def test_a_user_who_may_not_become_root_is_refused_before_anything_is_sent(host, tmp_path):
    host.run("mv", "/etc/sudoers.d/deploy", "/root/deploy.sudoers")
    try:
        refused = ByDeploy(host, tmp_path).stage(ByDeploy(host, tmp_path).capsule(1))
    finally:
        host.run("mv", "/root/deploy.sudoers", "/etc/sudoers.d/deploy")
    assert refused.error_id == "sudo-refused"
