"""`capsule gc` over a fleet of real host programs: shown first, then done, and never in a race."""

import json
from pathlib import Path

import pytest

from capsule.__main__ import main
from capsule_installer.op.accept import accept_order
from capsule_installer.system.disk import RealDisk
from support.desk import FLEET, NODE
from support.host_programs import real_launcher
from support.install_world import Machine, World
from support.ops import carry_out
from support.staged_host import Build, StagedHost


class Node:
    """A folder host on which four releases were installed, one after the other."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, mode=0o755)
        self.host = StagedHost(str(root), disk=RealDisk())
        for path in (root / "opt", root / "opt/capsule"):
            path.chmod(0o755)
        program = root / "opt/capsule/bin/capsule"
        program.write_bytes(real_launcher())
        program.chmod(0o755)
        self.world = World(self.host, Machine(), frozenset())
        self.names = []
        for counter in range(1, 5):
            marker = self.world.stage(Build(counter=counter))
            carry_out(self.world, marker, f"{counter}" * 32)
            self.names.append(marker.generation)

    def present(self) -> list[str]:
        return sorted(path.name for path in Path(self.host.layout.generations).iterdir())


class Site:
    """An inventory of two such hosts and the command, as a user calls it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.nodes = {name: Node(folder / "hosts" / name) for name in ("n1", "n2")}
        text = FLEET + NODE.format("n1", "a") + NODE.format("n2", "b")
        (folder / "fleet.toml").write_text(text)

    def gc(self, *arguments: str) -> tuple[int, str, str]:
        code = main(("gc", *arguments))
        said = self.capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def site(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path, capsys)


def test_a_dry_run_says_what_would_go_on_every_host_and_removes_nothing(site):
    before = {name: node.present() for name, node in site.nodes.items()}
    code, out, _ = site.gc("--lane", "all", "--dry-run", "--json")
    told = json.loads(out)
    assert (code, told["dry_run"]) == (0, True)
    for name, node in site.nodes.items():
        assert told["nodes"][name]["removed"] == sorted(node.names[:2])
        assert told["nodes"][name]["kept"][node.names[3]] == "current"
        assert told["nodes"][name]["kept"][node.names[2]] == "previous"
    assert {name: node.present() for name, node in site.nodes.items()} == before


def test_a_table_says_what_stays_and_why_and_what_went(site):
    code, out, _ = site.gc("--node", "n1")
    assert code == 0
    names = site.nodes["n1"].names
    assert f"{names[3]} (current)" in " ".join(out.split())
    assert site.nodes["n1"].present() == sorted(names[2:])
    assert site.nodes["n2"].present() == sorted(site.nodes["n2"].names)


def test_a_host_that_is_about_to_install_refuses_and_the_others_are_collected(site):
    node = site.nodes["n1"]
    staged = node.world.stage(Build(counter=5))
    effects = node.world.effects()
    accept_order(effects, node.host.order(
        staged, op_id="5" * 32, boot_id=effects.clock.boot_id(),
        boot_ms=effects.clock.boot_ms(), confirm="local",
    ))  # fmt: skip
    code, out, err = site.gc("--lane", "all")
    assert code == 8
    assert "op-open" in out
    assert "next:" in err
    assert staged.generation in node.present()
    assert site.nodes["n2"].present() == sorted(site.nodes["n2"].names[2:])


def test_while_a_host_is_staged_its_collection_is_refused(site):
    lock = site.nodes["n2"].host.disk.lock(site.nodes["n2"].host.layout.lock)
    try:
        code, out, _ = site.gc("--node", "n2", "--json")
    finally:
        lock.release()
    assert code == 8
    assert json.loads(out)["nodes"]["n2"]["error"] == "host-busy"
