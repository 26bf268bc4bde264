"""Managed files: what is found before an op, what an op refuses, and how an operator goes on.

On the real disk, with real owners; services only remember. The last test takes the power away.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from capsule_installer.op.accept import accept_order
from capsule_installer.op.effects import Effects
from capsule_installer.op.managed_files import FILE_BYTES_MAX, WantedFile, difference
from capsule_installer.op.op_folder import Result
from capsule_installer.op.set_aside import look_at_files, set_aside
from capsule_installer.op.supervisor import supervise
from capsule_installer.op.switch_plan import aside_name
from capsule_installer.services.base import ServiceManager
from capsule_installer.system.accounts import HostAccounts
from capsule_installer.system.disk import FileKind, RealDisk, Writer
from capsule_manifest.digest import object_id
from capsule_manifest.errors import CapsuleError, Failed
from support.crashing_disk import CrashingDisk
from support.failures import fails_with
from support.install_world import Machine, World
from support.model_disk import ModelDisk, survivors
from support.ops import carry_out
from support.staged_host import Build, StagedHost

pytestmark = pytest.mark.root

KEPT, GONE, NEW = "/etc/hello/hello.toml", "/etc/hello/gone.toml", "/etc/hello/new.toml"
FIRST = Build(counter=1, files={KEPT: b"one\n", GONE: b"gone\n"})
SECOND = Build(counter=2, files={KEPT: b"two\n", NEW: b"new\n"})
NOBODY = 65534


class Site:
    """A host on the real disk with release 1 installed and release 2 staged."""

    def __init__(self, root: Path) -> None:
        host = StagedHost(str(root), disk=RealDisk())
        self.root = root
        self.world = World(host, Machine(), frozenset())
        self.first = self.world.stage(FIRST)
        assert carry_out(self.world, self.first, "1" * 32) is Result.COMMITTED
        self.second = self.world.stage(SECOND)

    def path(self, target: str) -> Path:
        return self.root / target[1:]

    def effects(self) -> Effects:
        return replace(self.world.effects(), accounts=HostAccounts())

    def install(self, op_id: str = "2" * 32) -> tuple[Result | None, str]:
        effects = self.effects()
        order = self.world.host.order(
            self.second, op_id=op_id, boot_id=effects.clock.boot_id(),
            boot_ms=effects.clock.boot_ms(), confirm="local",
        )  # fmt: skip
        accept_order(effects, order)
        supervise(effects, op_id)
        op = self.world.host.op(op_id)
        return op.result(), op.reason()

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """Return every name below /etc/hello with what it is, whose, and what is in it."""
        found = {}
        for path in sorted(self.path("/etc/hello").iterdir()):
            stat = path.lstat()
            if path.is_symlink():
                content: object = path.readlink()
            else:
                content = path.read_bytes() if path.is_file() else len(list(path.iterdir()))
            found[path.name] = (stat.st_mode, stat.st_uid, stat.st_gid, content)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def edit(path: Path) -> None:
    path.write_bytes(b"one?\n")


def replace_by_rename(path: Path) -> None:
    path.with_name("x").write_bytes(b"ONE\n")
    path.with_name("x").chmod(0o644)
    path.with_name("x").rename(path)


def link_to_the_same_bytes(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def change_owner(path: Path) -> None:
    os.chown(path, NOBODY, 0)


def change_group(path: Path) -> None:
    os.chown(path, 0, NOBODY)


def change_mode(path: Path) -> None:
    path.chmod(0o666)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


EDITS = [edit, replace_by_rename, link_to_the_same_bytes, link_to_nothing, change_owner,
         change_group, change_mode, make_pipe]  # fmt: skip


def test_an_untouched_host_has_nothing_to_tell(site):
    assert [state.difference for state in look_at_files(site.effects())] == ["", ""]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (edit, "blake3:"),
        (replace_by_rename, "blake3:"),
        (link_to_the_same_bytes, f"a {FileKind.LINK}"),
        (link_to_nothing, f"a {FileKind.LINK}"),
        (change_owner, f"owner {NOBODY}:0"),
        (change_group, f"owner 0:{NOBODY}"),
        (change_mode, "mode 0o666"),
        (make_pipe, f"a {FileKind.OTHER}"),
        (make_folder, f"a {FileKind.DIRECTORY}"),
        (Path.unlink, "absent"),
    ],
)
def test_every_way_to_change_a_file_is_told_for_what_it_is(
    site: Site, change: Callable[[Path], None], told: str
) -> None:
    change(site.path(KEPT))
    states = {state.file.target: state.difference for state in look_at_files(site.effects())}
    assert states[str(site.path(KEPT))].startswith(told)
    assert states[str(site.path(GONE))] == ""


def test_all_that_differs_of_one_file_is_told_together(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"two")
    path.chmod(0o600)
    os.chown(path, NOBODY, NOBODY)
    wanted = WantedFile(path=str(path), digest=object_id(b"one"), mode=0o644, owner=(0, 0))
    got = difference(RealDisk(), wanted)
    assert [word.split()[0].partition(":")[0] for word in got.split(", ")] == [
        "blake3", "mode", "owner",
    ]  # fmt: skip


@pytest.mark.parametrize("target", [KEPT, GONE])
@pytest.mark.parametrize("change", [*EDITS, make_folder])
def test_an_op_refuses_a_changed_file_and_touches_nothing(
    site: Site, target: str, change: Callable[[Path], None]
) -> None:
    change(site.path(target))
    before = site.snapshot() if change is not make_pipe else {}
    result, reason = site.install()
    assert result is Result.REFUSED
    assert "managed-file-edited" in reason
    assert (site.snapshot() if before else {}) == before
    assert site.world.machine.running == {"hello.service": site.first.generation}


def test_a_switch_makes_exactly_the_difference_of_two_releases(site):
    assert site.install() == (Result.COMMITTED, "")
    assert site.snapshot() == {
        "hello.toml": (0o100644, 0, 0, b"two\n"), "new.toml": (0o100644, 0, 0, b"new\n"),
    }  # fmt: skip


def test_a_deleted_file_is_put_back_by_the_switch(site):
    site.path(KEPT).unlink()
    assert site.install()[0] is Result.COMMITTED
    assert site.path(KEPT).read_bytes() == b"two\n"


@pytest.mark.parametrize("deleted", [False, True])
def test_a_failed_release_leaves_every_file_as_it_was_bytes_owner_and_mode(site, deleted):
    if deleted:
        site.path(KEPT).unlink()
    before = site.snapshot()
    inodes = {path.name: path.lstat().st_ino for path in site.path("/etc/hello").iterdir()}
    site.world.broken = frozenset({site.second.generation})
    assert site.install()[0] is Result.RESTORED
    assert site.snapshot() == before
    after = {path.name: path.lstat().st_ino for path in site.path("/etc/hello").iterdir()}
    assert after == inodes, "the very files, with whatever else they carry"


def test_a_file_that_is_new_and_stands_there_already_with_its_bytes_is_adopted(site):
    site.path(NEW).write_bytes(b"new\n")
    site.path(NEW).chmod(0o600)
    before = site.snapshot()
    site.world.broken = frozenset({site.second.generation})
    assert site.install()[0] is Result.RESTORED
    assert site.snapshot() == before
    site.world.broken = frozenset()
    assert site.install("3" * 32)[0] is Result.COMMITTED
    assert site.snapshot()["new.toml"] == (0o100644, 0, 0, b"new\n")


def test_a_stranger_where_a_new_file_goes_is_refused_until_it_is_set_aside(site):
    site.path(NEW).write_bytes(b"mine\n")
    assert site.install()[0] is Result.REFUSED
    (state,) = look_at_files(site.effects(), generation=site.second.generation)
    assert state.is_new
    assert state.difference.startswith("blake3:")
    done = set_aside(site.effects(), generation=site.second.generation)
    (kept,) = done.kept.values()
    assert Path(kept).read_bytes() == b"mine\n"
    assert not site.path(NEW).exists()
    assert site.install("3" * 32)[0] is Result.COMMITTED
    assert site.path(NEW).read_bytes() == b"new\n"


@pytest.mark.parametrize("change", EDITS)
def test_what_is_set_aside_keeps_its_bytes_owner_and_mode_and_the_op_goes_on(
    site: Site, change: Callable[[Path], None]
) -> None:
    path = site.path(KEPT)
    change(path)
    stat = path.lstat()
    content = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
    done = set_aside(site.effects())
    assert done.put_back == (str(path),)
    kept = Path(done.kept[str(path)])
    now = kept.lstat()
    assert (now.st_mode, now.st_uid, now.st_gid) == (stat.st_mode, stat.st_uid, stat.st_gid)
    assert content == (kept.readlink() if kept.is_symlink() else
                       kept.is_file() and kept.read_bytes())  # fmt: skip
    assert site.snapshot()["hello.toml"] == (0o100644, 0, 0, b"one\n")
    assert sorted(site.snapshot()) == ["gone.toml", "hello.toml"], "nothing is left beside"
    receipt = site.effects().chain.read_all()[-1].receipt
    assert (receipt.kind, receipt.details[f"kept {path}"]) == ("files", str(kept))
    again = set_aside(site.effects())
    assert (again.kept, again.put_back, again.receipt) == ({}, (), None)
    assert site.install()[0] is Result.COMMITTED
    assert kept.lstat().st_ino == now.st_ino, "an op leaves what was set aside alone"


def test_a_deleted_file_is_put_back_on_demand(site):
    site.path(KEPT).unlink()
    assert set_aside(site.effects()).kept == {}
    assert site.path(KEPT).read_bytes() == b"one\n"


def test_a_folder_is_left_to_its_owner(site):
    make_folder(site.path(KEPT))
    (site.path(KEPT) / "precious").write_bytes(b"!")
    with fails_with("managed-file-edited"):
        set_aside(site.effects())
    assert (site.path(KEPT) / "precious").read_bytes() == b"!"


@pytest.mark.parametrize("target", [KEPT, NEW])
def test_a_file_larger_than_any_managed_file_is_refused_by_an_op_and_set_aside(site, target):
    path = site.path(target)
    with path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    result, reason = site.install()
    assert (result, "managed-file-edited" in reason) == (Result.REFUSED, True)
    done = set_aside(site.effects(), generation=site.second.generation if target == NEW else "")
    assert list(done.kept) == [str(path)]
    assert Path(done.kept[str(path)]).stat().st_size == FILE_BYTES_MAX + 1
    assert site.install("3" * 32)[0] is Result.COMMITTED


class FullDisk(RealDisk):
    """Has no room for what is written into quarantine."""

    def create(self, path: str, mode: int) -> Writer:
        writer = super().create(path, mode)
        if "/quarantine/" in path:
            writer.close()
            raise Failed("disk-full", "no space left", where=path)
        return writer


def test_half_a_copy_is_no_copy_and_the_next_run_makes_it_whole(site):
    edit(site.path(KEPT))
    for _ in range(2):
        with fails_with("disk-full"):
            set_aside(replace(site.effects(), disk=FullDisk()))
    quarantine = Path(site.world.host.layout.quarantine)
    assert [path for path in quarantine.rglob("*") if path.is_file()] == []
    (kept,) = set_aside(site.effects()).kept.values()
    assert Path(kept).read_bytes() == b"one?\n"


def test_what_was_set_aside_before_a_refusal_is_in_a_receipt(site):
    first, last = (Path(state.file.target) for state in look_at_files(site.effects()))
    first.write_bytes(b"mine\n")
    make_folder(last)
    with fails_with("managed-file-edited"):
        set_aside(site.effects())
    receipt = site.effects().chain.read_all()[-1].receipt
    assert receipt.kind == "files"
    assert Path(receipt.details[f"kept {first}"]).read_bytes() == b"mine\n"
    count = len(site.effects().chain.read_all())
    with fails_with("managed-file-edited"):
        set_aside(site.effects())
    assert len(site.effects().chain.read_all()) == count, "nothing was done the second time"


def test_a_controller_with_a_lower_fence_sets_nothing_aside(site):
    edit(site.path(KEPT))
    site.effects().state.raise_fence(7)
    with fails_with("order-fenced"):
        set_aside(site.effects(), fence=6)
    assert site.path(KEPT).read_bytes() == b"one?\n"


def test_the_program_shows_and_sets_aside_and_the_survey_tells_what_stands_in_the_way(site):
    host = site.world.host
    edit(site.path(KEPT))
    site.path(NEW).write_bytes(b"mine\n")
    survey = host.run("survey")[1][0]["survey"]
    assert [item["target"] for item in survey["files"]] == [str(site.path(KEPT))]
    assert survey["obstacles"] == [
        {"generation": site.second.generation, "target": str(site.path(NEW))}
    ]
    code, (told,) = host.run("files", "--json")
    assert (code, told["files"][str(site.path(GONE))]) == (0, "same")
    assert told["files"][str(site.path(KEPT))].startswith("blake3:")
    host.run("files", "--set-aside", "--json")
    host.run("files", "--set-aside", "--json", "--generation", site.second.generation)
    survey = host.run("survey")[1][0]["survey"]
    assert (survey["files"], survey["obstacles"]) == ([], [])


class Meddling:
    """Services between whose stop and the switch somebody changes a file."""

    def __init__(self, services: ServiceManager, meddle: Callable[[], None]) -> None:
        self._services = services
        self._meddle = meddle

    def __getattr__(self, name: str) -> object:
        return getattr(self._services, name)

    def stop(self, unit: str, deadline_ms: int) -> None:
        self._services.stop(unit, deadline_ms)
        self._meddle()
        self._meddle = lambda: None


def meddle_with(site: Site, meddle: Callable[[], None]) -> None:
    """Carry out the op `2…`, with a hand in it while it begins."""
    effects = site.effects()
    order = site.world.host.order(
        site.second, op_id="2" * 32, boot_id=effects.clock.boot_id(),
        boot_ms=effects.clock.boot_ms(), confirm="local",
    )  # fmt: skip
    accept_order(effects, order)
    supervise(replace(effects, services=Meddling(effects.services, meddle)), "2" * 32)


@pytest.mark.parametrize(
    ("target", "way"),
    [
        (KEPT, "in place"), (GONE, "in place"),
        (KEPT, "by another file"), (GONE, "by another file"), (NEW, "by another file"),
    ],
)  # fmt: skip
def test_what_is_written_while_an_op_begins_is_kept_and_the_op_undone(site, target, way):
    path = site.path(target)

    def meddle() -> None:
        if way == "in place":
            path.write_bytes(b"late\n")
        else:
            path.with_name("x").write_bytes(b"late\n")
            path.with_name("x").rename(path)

    meddle_with(site, meddle)
    op = site.world.host.op("2" * 32)
    assert op.result() is Result.RESTORED
    assert "managed-file-changing" in op.reason()
    assert b"late\n" in [
        found.read_bytes() for found in site.path("/etc/hello").iterdir() if found.is_file()
    ]
    generation = site.second.generation if target == NEW else ""
    kept = set_aside(site.effects(), generation=generation).kept
    assert b"late\n" in [Path(place).read_bytes() for place in kept.values()]
    assert site.install("3" * 32)[0] is Result.COMMITTED


def leave_late_edit(site: Site, target: str) -> Path:
    """Let an op be undone because of an edit while it began; return where that lies."""
    path = site.path(target)

    def meddle() -> None:
        path.with_name("x").write_bytes(b"late\n")
        path.with_name("x").rename(path)

    meddle_with(site, meddle)
    assert "managed-file-changing" in site.world.host.op("2" * 32).reason()
    return path.with_name(f".{path.name}.capsule-aside")


@pytest.mark.parametrize("target", [KEPT, NEW])
def test_an_op_refuses_while_an_earlier_late_edit_is_not_set_aside(site, target):
    aside = leave_late_edit(site, target)
    stops = site.world.machine.starts
    result, reason = site.install("3" * 32)
    assert result is Result.REFUSED
    assert "managed-file-edited" in reason
    assert str(aside) in reason
    assert site.world.machine.starts == stops
    assert aside.read_bytes() == b"late\n"
    survey = site.world.host.run("survey")[1][0]["survey"]
    told = [item["target"] for item in [*survey["files"], *survey["obstacles"]]]
    assert told == [str(site.path(target))]
    set_aside(site.effects(), generation=site.second.generation if target == NEW else "")
    assert site.install("4" * 32)[0] is Result.COMMITTED


def test_a_second_late_edit_has_a_name_of_its_own_and_both_are_set_aside(site):
    path = site.path(KEPT)
    aside = path.with_name(".hello.toml.capsule-aside")

    def meddle() -> None:
        aside.write_bytes(b"another's\n")
        path.with_name("x").write_bytes(b"late\n")
        path.with_name("x").rename(path)

    meddle_with(site, meddle)
    assert site.world.host.op("2" * 32).result() is Result.RESTORED
    done = set_aside(site.effects())
    assert {Path(place).read_bytes() for place in done.kept.values()} == {
        b"another's\n", b"late\n",
    }  # fmt: skip
    assert sorted(site.snapshot()) == ["gone.toml", "hello.toml"]
    details = site.effects().chain.read_all()[-1].receipt.details
    assert set(done.kept.values()) <= set(details.values())


def late_edits_lost(skip: frozenset[str] = frozenset()) -> list[str]:
    """Return the moments after a late edit got its name at which a power loss destroys it."""
    world = World.fresh()
    disk = world.host.disk
    assert isinstance(disk, ModelDisk)
    disk.mkdir("/h/etc/hello", 0o755)
    assert carry_out(world, world.stage(FIRST), "1" * 32) is Result.COMMITTED
    second = world.stage(SECOND)
    path = world.host.layout.inside(KEPT)
    disk.sync_filesystem("/", "test")
    seen: list[tuple[str, ModelDisk]] = []

    def meddle() -> None:
        with disk.create(f"{path}.x", 0o644) as writer:
            writer.write(b"late\n")
            writer.fsync("test")
        disk.rename(f"{path}.x", path)
        disk.sync_filesystem("/", "test")
        disk.skip = skip

    def watch(moment: object, what: str) -> None:
        if disk.stat(aside_name(path)) is not None and not what.startswith("write"):
            seen.append((f"{moment} {what}", disk.copy()))

    watched = world.on(CrashingDisk(disk, watch=watch), world.machine)
    effects = watched.effects()
    order = world.host.order(
        second, op_id="2" * 32, boot_id=effects.clock.boot_id(),
        boot_ms=effects.clock.boot_ms(), confirm="local",
    )  # fmt: skip
    accept_order(effects, order)
    supervise(replace(effects, services=Meddling(effects.services, meddle)), "2" * 32)
    assert world.host.op("2" * 32).result() is Result.RESTORED
    etc = f"{world.host.layout.root}/etc"
    return [
        f"{moment}, {how}"
        for moment, left in seen
        for how, survivor in survivors(left)
        if b"late\n" not in [data for _, data in contents(survivor, etc)]
    ]


def test_no_power_loss_destroys_an_edit_made_during_an_op():
    assert late_edits_lost() == []


def test_without_its_fsync_an_edit_made_during_an_op_could_be_lost():
    assert late_edits_lost(frozenset({"late edit's name"})) != []


def small_world() -> World:
    world = World.fresh()
    world.host.disk.mkdir("/h/etc/hello", 0o755)
    assert carry_out(world, world.stage(FIRST), "1" * 32) is Result.COMMITTED
    path = world.host.layout.inside(KEPT)
    world.host.disk.unlink(path)
    with world.host.disk.create(path, 0o600) as writer:
        writer.write(b"edited\n")
        writer.fsync("test")
    world.host.disk.sync_filesystem("/", "test")
    return world


def contents(disk: ModelDisk, folder: str) -> Iterator[tuple[str, bytes]]:
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        found = disk.stat(path)
        if found is not None and found.kind is FileKind.DIRECTORY:
            yield from contents(disk, path)
        elif found is not None and found.kind is FileKind.FILE:
            yield path, disk.read(path, 2**20)


def power_losses(skip: frozenset[str] = frozenset()) -> Iterator[tuple[World, str, ModelDisk]]:
    """Yield every disk that a power loss may leave at any moment of setting one edit aside."""
    world = small_world()
    disk = world.host.disk
    assert isinstance(disk, ModelDisk)
    disk.skip = skip
    seen: list[tuple[str, ModelDisk]] = []
    watching = CrashingDisk(
        disk, watch=lambda moment, what: seen.append((f"{moment} {what}", disk.copy()))
    )
    set_aside(world.on(watching, world.machine).effects())
    known = set()
    for moment, left in seen:
        for how, survivor in survivors(left):
            print_of_it = survivor.fingerprint()
            if print_of_it in known:
                continue
            known.add(print_of_it)
            yield world, f"{moment}, {how}", survivor


def lost_an_edit(skip: frozenset[str] = frozenset()) -> list[str]:
    problems = []
    for world, moment, survivor in power_losses(skip):
        etc, kept = f"{world.host.layout.root}/etc", world.host.layout.quarantine
        found = [path for folder in (etc, kept) for path, data in contents(survivor, folder)
                 if data == b"edited\n"]  # fmt: skip
        if not found:
            problems.append(f"lost at {moment}")
            continue
        machine = world.machine.copy()
        machine.reboot()
        again = world.on(survivor, machine)
        try:
            set_aside(again.effects())
        except (CapsuleError, OSError, AssertionError) as error:
            problems.append(f"stuck after {moment}: {error}")
            continue
        data = survivor.read(again.host.layout.inside(KEPT), 100)
        is_kept = any(text == b"edited\n" for _, text in contents(survivor, kept))
        if data != b"one\n" or not is_kept:
            problems.append(f"not done after {moment}: {data!r}, kept {is_kept}")
    return problems


def test_no_power_loss_while_setting_aside_loses_the_edit():
    assert lost_an_edit() == []


@pytest.mark.parametrize(
    "label", ["name of what is set aside", "kept file's data", "kept file's name"]
)
def test_without_any_one_fsync_an_edit_could_be_lost(label):
    assert lost_an_edit(frozenset({label})) != []


def is_done_for_good(skip: frozenset[str] = frozenset()) -> bool:
    """Say whether what was answered is so after every power loss right behind the answer."""
    world = small_world()
    disk = world.host.disk
    assert isinstance(disk, ModelDisk)
    disk.skip = skip
    set_aside(world.effects())
    path = world.host.layout.inside(KEPT)
    return all(left.read(path, 100) == b"one\n" for _, left in survivors(disk))


def test_what_was_put_back_stays_after_a_power_loss():
    assert is_done_for_good()


@pytest.mark.parametrize("label", ["put-back file's data", "put-back file's name"])
def test_without_its_fsync_what_was_put_back_could_come_undone(label):
    assert not is_done_for_good(frozenset({label}))
