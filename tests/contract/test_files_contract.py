"""A controller looks at the managed files of a real host program, and has edits set aside."""

from pathlib import Path

import pytest

from capsule.home import ProductHome
from capsule.rollout.managed import node_files
from capsule.session import HostSession
from capsule.transport.local import LocalTransport
from capsule_installer.system.disk import RealDisk
from support import documents
from support.failures import fails_with
from support.host_programs import real_launcher
from support.install_world import Machine, World
from support.ops import carry_out
from support.staged_host import NODE, Build, StagedHost

TARGET, NEW = "/etc/hello/hello.toml", "/etc/hello/new.toml"


class Site:
    """A controller and a folder host with release 1 installed and release 2 staged."""

    def __init__(self, folder: Path) -> None:
        root = folder / "host"
        root.mkdir(mode=0o755)
        self.host = StagedHost(str(root), disk=RealDisk())
        for path in (root / "opt", root / "opt/capsule"):
            path.chmod(0o755)
        program = root / "opt/capsule/bin/capsule"
        program.write_bytes(real_launcher())
        program.chmod(0o755)
        world = World(self.host, Machine(), frozenset())
        self.host.state.raise_fence(1)
        carry_out(world, world.stage(Build(counter=1, files={TARGET: b"one\n"})), "1" * 32)
        self.second = world.stage(Build(counter=2, files={TARGET: b"two\n", NEW: b"new\n"}))
        self.home = ProductHome(home=folder / "home", product="acme/hello")
        self.file, self.new = root / TARGET[1:], root / NEW[1:]

    def files(self, **changes):
        return node_files(
            HostSession(LocalTransport(Path(self.host.root)), node=NODE),
            home=self.home, key=self.host.signer.public, controller=documents.CONTROLLER_KEY,
            **{"set_aside": False, **changes},
        )  # fmt: skip

    def copies(self):
        copies = self.home.receipts(NODE, signer=documents.CONTROLLER_KEY)
        return [item.receipt for item in copies.read_all(self.host.signer.public)]


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_looking_changes_nothing(site):
    site.file.write_bytes(b"edited\n")
    said = site.files()
    assert said.files[str(site.file)].startswith("blake3:")
    assert (said.kept, said.put_back, said.receipt) == ({}, (), None)
    assert site.file.read_bytes() == b"edited\n"


def test_an_edit_is_set_aside_and_the_controller_keeps_the_receipt(site):
    site.file.write_bytes(b"edited\n")
    said = site.files(set_aside=True)
    assert said.files == {str(site.file): "same"}
    assert Path(said.kept[str(site.file)]).read_bytes() == b"edited\n"
    assert site.file.read_bytes() == b"one\n"
    assert site.copies()[-1] == said.receipt.receipt
    assert site.copies()[-1].kind == "files"
    assert site.files(set_aside=True).receipt is None


def test_what_is_in_the_way_of_the_next_release_is_set_aside_for_it(site):
    site.new.write_bytes(b"mine\n")
    assert site.files().files == {str(site.file): "same"}
    generation = site.second.generation
    assert site.files(generation=generation).files[str(site.new)].startswith("blake3:")
    said = site.files(generation=generation, set_aside=True)
    assert Path(said.kept[str(site.new)]).read_bytes() == b"mine\n"
    assert not site.new.exists()


def test_a_controller_that_was_fenced_sets_nothing_aside(site):
    site.file.write_bytes(b"edited\n")
    site.host.state.raise_fence(9)
    with fails_with("order-fenced"):
        site.files(set_aside=True)
    assert site.file.read_bytes() == b"edited\n"
