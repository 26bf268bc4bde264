"""Services that run from images of the release, by Debian's podman, on a real host.

Nothing on these hosts reaches a registry, and what leaves them is counted.
"""

import hashlib
import json
import random
import signal
import time
import urllib.request
from threading import Thread

import pytest

from capsule.stage import NodeStaged
from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import CapsuleError
from capsule_manifest.records import decode_proof
from capsule_manifest.release import Budgets
from support.engines import config_of, named_by
from support.images import ImageFile, digest_of, layer_of
from support.lab.commands import wait_until
from support.lab.controller import LabController
from support.lab.podman import RUN, install_podman, layers_held, web_image

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

PORT = 8080
LARGE = random.Random(1).randbytes(40_000_000)
UNIT = """\
[Unit]
Description=Answers from an image
[Service]
{more}ExecStart={run} {image} {command}
KillMode=mixed
TimeoutStopSec=10
[Install]
WantedBy=multi-user.target
"""
LONG = Budgets(d1_ms=120_000, d2_ms=60_000)
PRUNE = "ExecStopPost=/usr/bin/podman system prune --all --force\n"
# Every registry is one that can't be reached, also for names without one.
REGISTRIES = """\
unqualified-search-registries = ["127.0.0.9:1"]
[[registry]]
prefix = "*.test"
location = "127.0.0.9:1"
"""
COUNTER = """\
table inet seen {
  chain out {
    type filter hook output priority 0; policy accept;
    oif lo accept
    tcp sport 22 accept
    ct state established accept
    meta l4proto { tcp, udp } counter comment "out"
  }
}
"""


class DamagedImage(ImageFile):
    """An image whose last layer is not what its name says."""

    def blobs(self):
        digest, blobs = super().blobs()
        last = digest_of(self.layers[-1])
        return digest, blobs | {last: blobs[last].replace(b"two", b"2.0")}


def large_image(text):
    """Return an image whose loading takes a moment: a layer with a large file between two."""
    base, page = web_image(text).layers
    return ImageFile(layers=[base, layer_of(**{"www/large": LARGE}), page], compression="none")


class Web:
    """A controller, its host, and releases whose service runs an image."""

    def __init__(self, host, folder):
        self.host = host
        self.controller = LabController(host, folder)

    def release(self, counter, text, *, more="", command=f"/bin/serve {PORT}", **how):
        unit = UNIT.format(more=more, run=RUN, image="@{image.site}", command=command)
        images = {"site": web_image(text)}
        asked = {"images": images, "budgets": LONG, "start_ms": 30_000, "stop_ms": 12_000}
        return self.controller.capsule(counter, unit=unit, **(asked | how))

    def stage(self, mini):
        return self.controller.stage(mini)

    def staged(self, *arguments, **more):
        mini = self.release(*arguments, **more)
        staged = self.stage(mini)
        assert isinstance(staged, NodeStaged), staged
        return mini

    def install(self, mini):
        return self.controller.install(mini)

    def installed(self, *arguments, **more):
        mini = self.staged(*arguments, **more)
        result = self.install(mini)
        assert result.result == "committed", result.receipt.receipt
        return mini

    def plain(self, counter):
        """Install a release whose service runs no image."""
        _, result = self.controller.staged_and_installed(counter)
        assert result.result == "committed", result.receipt.receipt

    def proof(self, mini):
        (op,) = self.host.path("/var/lib/capsule/state/ops").glob("*")
        record = decode_record((op / "proof").read_bytes(), where="proof")
        assert mini.generation.encode() in record.payload
        return decode_proof(record.payload)

    def kill_supervisor_once_it_stops(self):
        def stopping():
            ops = self.host.path("/var/lib/capsule/state/ops").glob("*")
            found = [
                op for op in ops if (op / "stopping").exists() and not (op / "result").exists()
            ]
            self.open = found[0].name if found else ""
            return self.open

        wait_until(stopping, timeout_s=60, what="an op that stops")
        self.host.signal_unit(f"capsule-{self.open}.service", signal.SIGKILL)

    def cut_power_once_it_loads(self, after_s):
        notes = self.host.path("/var/lib/capsule/state/engines/podman")
        wait_until(lambda: list(notes.glob("*.loading")), timeout_s=90, what="an image is loaded")
        time.sleep(after_s)
        self.host.cut_power()

    def large_is_whole(self):
        """Let the container itself hash the large file of its image."""
        name = self.podman("ps", "--quiet").strip()
        told = self.podman("exec", name, "busybox", "sha256sum", "/www/large")
        return told.split()[0] == hashlib.sha256(LARGE).hexdigest()

    def container_pid(self):
        return int(self.podman("ps", "--format={{.Pid}}"))

    def answers(self, text):
        try:
            return self.answer() == text
        except OSError:
            return False

    def answer(self):
        with urllib.request.urlopen(f"http://{self.host.address}:{PORT}/", timeout=5) as got:
            return got.read().decode()

    def main_pid(self):
        shown = self.host.run("systemctl", "show", "--value", "-p", "MainPID", "hello.service")
        return int(shown.stdout)

    def podman(self, *words, check=True):
        return self.host.run("env", "--chdir=/", "podman", *words, timeout_s=60, check=check).stdout

    def pins(self):
        names = self.podman("images", "--format={{.Repository}}:{{.Tag}}").split()
        return sorted(name for name in names if "none" not in name)

    def packets_out(self):
        told = json.loads(self.host.run("nft", "--json", "list", "table", "inet", "seen").stdout)
        rules = [item["rule"] for item in told["nftables"] if "rule" in item]
        counters = [part["counter"] for rule in rules for part in rule["expr"] if "counter" in part]
        return sum(counter["packets"] for counter in counters)


@pytest.fixture
def web(host, tmp_path):
    install_podman(host)
    host.write("/etc/containers/registries.conf", REGISTRIES)
    host.run("nft", "-f", "-", stdin=COUNTER.encode())
    # What a test then loses with the power is nothing that dpkg has put there.
    host.run("sync")
    return Web(host, tmp_path)


def test_a_service_from_an_image_answers_and_is_proved_without_a_registry(web):
    first = web.installed(1, "one")
    assert web.answer() == "one"
    assert web.controller.serving() == first.generation
    # Two images with one base: podman has the base once.
    second = web.installed(2, "two")
    assert web.answer() == "two"
    assert layers_held(web.host) == 3
    assert web.pins() == sorted(f"capsule.local/site:{mini.generation}" for mini in (first, second))
    rolled = web.host.run("/opt/capsule/bin/capsule", "rollback", "--json", timeout_s=120)
    assert "committed" in rolled.stdout
    wait_until(lambda: web.answer() == "one", timeout_s=20, what="one answers")
    web.host.reboot()
    wait_until(lambda: web.controller.serving() == first.generation, timeout_s=30, what="it serves")
    wait_until(lambda: web.podman("ps", "--quiet") != "", timeout_s=30, what="a container runs")


def test_the_proof_names_the_container_and_nothing_leaves_the_host(web):
    mini = web.staged(1, "one")
    result = web.install(mini)
    assert result.result == "committed", result.receipt.receipt
    (unit,) = web.proof(mini).units
    # Other processes of the unit may have been seen too.
    evidence = "\n".join(unit.evidence)
    assert config_of(web_image("one")) in evidence
    assert unit.pid == web.main_pid()
    assert f"pid {web.container_pid()}" in evidence
    assert web.packets_out() == 0


def test_a_host_without_an_engine_refuses_before_anything_is_stopped(host, tmp_path):
    web = Web(host, tmp_path)
    web.plain(1)
    pid = web.main_pid()
    refused = web.stage(web.release(2, "two"))
    assert isinstance(refused, CapsuleError)
    assert refused.error_id == "engine-missing"
    assert (web.main_pid(), web.controller.serving()[:2]) == (pid, "1-")


def test_an_image_that_is_not_what_was_signed_is_refused_while_staging(web):
    web.plain(1)
    pid = web.main_pid()
    image, other = web_image("two"), web_image("other")
    renamed = web.release(2, "two", images={"site": image}, external={"site": named_by("s", other)})
    refused = web.stage(renamed)
    assert isinstance(refused, CapsuleError)
    assert refused.error_id == "image-digest-wrong"
    damaged = DamagedImage(layers=image.layers, compression="none")
    refused = web.stage(web.release(3, "two", images={"site": damaged}))
    assert isinstance(refused, CapsuleError)
    assert refused.error_id == "image-load-failed"
    assert web.podman("images", "--quiet") == ""
    assert (web.main_pid(), web.controller.serving()[:2]) == (pid, "1-")


def test_a_unit_that_may_pull_is_refused_while_staging(web):
    mini = web.controller.capsule(
        1,
        unit=UNIT.format(
            more="", run="/usr/bin/podman run --rm", image="registry.test/web", command=""
        ),
    )
    refused = web.stage(mini)
    assert isinstance(refused, CapsuleError)
    assert refused.error_id == "rehearsal-failed"


def test_images_that_the_engines_own_prune_takes_after_staging_are_loaded_again(web):
    web.installed(1, "one")
    mini = web.staged(2, "two")
    web.podman("image", "prune", "--all", "--force")
    assert not any(mini.generation in name for name in web.pins())
    result = web.install(mini)
    assert result.result == "committed", result.receipt.receipt
    assert web.answer() == "two"
    assert any(mini.generation in name for name in web.pins())
    # A staging that changes nothing finds it, too.
    web.podman("rmi", "--force", config_of(web_image("one")))
    assert isinstance(web.stage(mini), NodeStaged)


def test_an_image_that_is_gone_and_is_not_taken_again_stops_nothing(web):
    web.installed(1, "one")
    pid = web.main_pid()
    mini = web.staged(2, "two")
    web.podman("rmi", "--force", config_of(web_image("two")))
    web.host.write("/etc/containers/policy.json", '{"default": [{"type": "reject"}]}')
    result = web.install(mini)
    assert result.result == "refused"
    assert "image-load-failed" in result.receipt.receipt.reason
    assert (web.main_pid(), web.answer()) == (pid, "one")


def test_what_a_prune_takes_between_stop_and_start_is_loaded_again(web):
    web.installed(1, "one", more=PRUNE)
    web.installed(2, "two")
    assert web.answer() == "two"


def test_a_restore_loads_again_what_a_prune_took_of_the_old_release(web):
    web.installed(1, "one", more=PRUNE)
    mini = web.staged(2, "two", command="/bin/false")
    result = web.install(mini)
    assert result.result == "restored", result.receipt.receipt
    assert "proof-failed" in result.receipt.receipt.reason
    wait_until(lambda: web.answer() == "one", timeout_s=20, what="one answers")


def test_a_rescue_without_the_program_loads_again_what_a_prune_took(web):
    web.installed(1, "one", more=PRUNE)
    short = Budgets(d1_ms=25_000, d2_ms=60_000)
    mini = web.staged(2, "two", budgets=short, start_ms=6_000, stop_ms=6_000)
    killer = Thread(target=web.kill_supervisor_once_it_stops)
    killer.start()
    result = web.install(mini)
    killer.join()
    assert result.result == "restored", result.receipt.receipt
    wait_until(lambda: web.answers("one"), timeout_s=30, what="one answers")
    assert web.controller.serving()[:2] == "1-"


def test_a_staged_image_survives_a_power_cut(web):
    mini = web.staged(1, "one", images={"site": large_image("one")})
    web.host.cut_power()
    web.host.boot()
    result = web.install(mini)
    assert result.result == "committed", result.receipt.receipt
    assert web.large_is_whole()


@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.2, 2.0])
def test_a_power_cut_while_an_image_is_loaded_leaves_nothing_that_is_taken_for_it(web, after_s):
    mini = web.release(1, "one", images={"site": large_image("one")})
    cutter = Thread(target=web.cut_power_once_it_loads, args=(after_s,))
    cutter.start()
    web.stage(mini)
    cutter.join()
    web.host.boot()
    staged = web.stage(mini)
    assert isinstance(staged, NodeStaged), staged
    result = web.install(mini)
    assert result.result == "committed", result.receipt.receipt
    assert web.large_is_whole()


def test_collecting_drops_images_of_generations_that_are_gone_and_no_others(web):
    for counter, text in enumerate(("one", "two", "three"), 1):
        mini = web.installed(counter, text)
    web.podman("tag", config_of(web_image("three")), "localhost/mine:1")
    told = web.host.run("/opt/capsule/bin/capsule", "gc", "--json", timeout_s=60).stdout
    assert "collected" in told
    assert len([name for name in web.pins() if name.startswith("capsule.local/")]) == 2
    assert any(mini.generation in name for name in web.pins())
    assert "localhost/mine:1" in web.pins()
    held = web.podman("images", "--no-trunc", "--format={{.ID}}")
    assert config_of(web_image("one")) not in held
    assert web.answer() == "three"
