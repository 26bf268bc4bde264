"""Images of a generation: loaded from its layout, checked, kept, and loaded again when they go."""

import pytest

from capsule_installer.engines.base import Container, NoImages, WantedImage
from capsule_installer.engines.images import EngineImages
from capsule_installer.host.layout import make_layout
from capsule_installer.system.disk import RealDisk
from capsule_installer.system.fsops import make_dirs
from capsule_manifest.errors import Failed, Refused
from support.deliveries import FakeClock
from support.engines import FakeEngine, config_of, layout_files
from support.images import ImageFile, layer_of
from support.model_disk import ModelDisk, survivors

GENERATION = "7-01234567"
PIN = f"capsule.local/web:{GENERATION}"
IMAGE = ImageFile(compression="none")
OTHER = ImageFile(layers=[layer_of(other=b"other\n")], compression="none")


class Scene:
    """An engine, and a generation with one image that a unit runs."""

    def __init__(self, folder, files=None):
        self.layout = folder / "generations" / GENERATION / "web"
        for path, data in (files or layout_files(IMAGE)).items():
            (self.layout / path).parent.mkdir(parents=True, exist_ok=True)
            (self.layout / path).write_bytes(data)
        self.engine = FakeEngine(disk=RealDisk())
        self.images = EngineImages(
            disk=RealDisk(),
            layout=make_layout(str(folder)),
            clock=FakeClock(),
            engine=self.engine,
        )
        self.wanted = WantedImage(
            name="web", id=config_of(IMAGE), layout=str(self.layout), units=("web.service",)
        )

    def ensure(self):
        return self.images.ensure([self.wanted], GENERATION, 60_000)

    def require(self):
        self.images.require([self.wanted], 60_000)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_an_image_is_loaded_once_and_kept_by_a_name_of_its_generation(scene):
    assert scene.ensure() == ("web",)
    assert scene.ensure() == ()
    assert scene.engine.loads == [str(scene.layout)]
    assert scene.engine.pins() == {PIN: config_of(IMAGE)}


def test_an_image_that_the_engine_has_from_elsewhere_is_only_named(scene):
    scene.engine.store[config_of(IMAGE)] = {"registry.test/web:1"}
    assert scene.ensure() == ()
    assert scene.engine.store[config_of(IMAGE)] == {"registry.test/web:1", PIN}


@pytest.mark.parametrize("look", [Scene.ensure, Scene.require])
def test_an_image_that_the_engines_own_collector_took_is_loaded_again(scene, look):
    scene.ensure()
    scene.engine.prune(every_unused=True)
    look(scene)
    assert scene.engine.holds(config_of(IMAGE))


def test_an_image_that_is_gone_and_is_not_taken_again_is_named(scene):
    scene.ensure()
    scene.engine.prune(every_unused=True)
    scene.engine.refuses = "no space left"
    with pytest.raises(Failed) as failed:
        scene.require()
    assert failed.value.error_id == "image-gone"
    assert "no space left" in str(failed.value)
    assert config_of(IMAGE) in str(failed.value)


def test_an_image_that_the_engine_makes_under_another_id_is_refused(scene):
    scene.engine.breaks = {str(scene.layout): config_of(OTHER)}
    with pytest.raises(Refused) as refused:
        scene.ensure()
    assert refused.value.error_id == "image-digest-wrong"


def without(files, path):
    return {name: data for name, data in files.items() if name != path}


def blob(digest):
    return f"blobs/{digest.replace(':', '/')}"


@pytest.mark.parametrize(
    "files",
    [
        layout_files(OTHER),
        layout_files(IMAGE) | {blob(IMAGE.blobs()[0]): b"{}"},
        layout_files(IMAGE) | {blob(config_of(IMAGE)): b"{}"},
        without(layout_files(IMAGE), blob(config_of(IMAGE))),
        without(layout_files(IMAGE), blob(IMAGE.blobs()[0])),
        without(layout_files(IMAGE), "index.json"),
        layout_files(IMAGE) | {"index.json": b'{"manifests":[]}'},
    ],
    ids=["other", "manifest", "configuration", "no config", "no manifest", "no index", "empty"],
)
def test_a_layout_that_is_not_of_the_signed_image_never_reaches_the_engine(tmp_path, files):
    scene = Scene(tmp_path, files)
    with pytest.raises(Refused) as refused:
        scene.ensure()
    assert refused.value.error_id == "image-digest-wrong"
    assert scene.engine.loads == []
    assert scene.engine.pins() == {}


def test_only_what_is_kept_for_other_generations_is_dropped(scene):
    scene.ensure()
    scene.engine.store["sha256:" + "1" * 64] = {"registry.test/web:1"}
    assert scene.images.forget({GENERATION}) == 0
    assert scene.images.forget({"8-01234567"}) == 1
    assert set(scene.engine.store) == {"sha256:" + "1" * 64}


def test_an_engine_that_capsule_never_used_is_not_asked_what_it_keeps(scene):
    scene.engine.store[config_of(IMAGE)] = {"capsule.local/web:6-01234567"}
    assert scene.images.forget(set()) == 0


def test_a_host_without_an_engine_refuses_units_that_run_images_and_nothing_else(scene):
    none = NoImages()
    assert none.ensure([], GENERATION, 0) == ()
    none.require([], 0)
    for look in (lambda: none.ensure([scene.wanted], GENERATION, 0),
                 lambda: none.require([scene.wanted], 0)):  # fmt: skip
        with pytest.raises(Refused) as refused:
            look()
        assert refused.value.error_id == "engine-missing"
        assert "web.service" in str(refused.value)


class Stopped(Exception):
    """The host program is gone, wherever it was."""


def test_what_a_stopped_load_has_left_is_never_taken_for_the_image(scene):
    load = scene.engine.load

    def torn(layout, timeout_ms):
        load(layout, timeout_ms)
        raise Stopped

    scene.engine.load = torn
    with pytest.raises(Stopped):
        scene.ensure()
    assert scene.engine.holds(config_of(IMAGE))
    scene.engine.load = load
    assert scene.ensure() == ("web",)
    # Dropped, made again for the sake of layers that were left without an image, and dropped.
    assert scene.engine.loads == [str(scene.layout)] * 3
    assert scene.engine.discarded == [config_of(IMAGE)] * 2
    # From now on it is an image like any other.
    assert scene.ensure() == ()
    assert len(scene.engine.loads) == 3


def leave_note(scene):
    """Leave what a restore leaves that is killed while it loads."""
    load = scene.engine.load

    def torn(*_):
        raise Stopped

    scene.engine.load = torn
    with pytest.raises(Stopped):
        scene.require()
    scene.engine.load = load


@pytest.mark.parametrize("look", [Scene.ensure, Scene.require])
def test_an_image_with_a_note_that_serves_already_is_held_until_it_does_not(scene, look):
    leave_note(scene)
    # A rescue took over, loaded it and started its unit.
    scene.engine.load(str(scene.layout), 60_000)
    scene.engine.running = (Container(id="1" * 64, image=config_of(IMAGE), pid=7),)
    look(scene)
    assert scene.engine.discarded == []
    scene.engine.running = ()
    look(scene)
    assert scene.engine.discarded == [config_of(IMAGE)] * 2


def test_a_load_that_begins_anew_keeps_the_pins_of_other_generations(scene):
    leave_note(scene)
    other = "capsule.local/web:6-01234567"
    scene.engine.load(str(scene.layout), 60_000)
    scene.engine.pin(config_of(IMAGE), other)
    scene.ensure()
    assert scene.engine.pins() == {PIN: config_of(IMAGE), other: config_of(IMAGE)}


def notes_that_may_be_back(skip=frozenset()):
    """Return what a power loss right after a load may bring back of its note."""
    disk = ModelDisk(skip=skip)
    layout = f"/h/generations/{GENERATION}/web"
    for path, data in layout_files(IMAGE).items():
        make_dirs(disk, f"{layout}/{path}".rpartition("/")[0], 0o755)
        with disk.create(f"{layout}/{path}", 0o644) as writer:
            writer.write(data)
    disk.sync_filesystem("/", "test")
    engine = FakeEngine(disk=disk)
    images = EngineImages(disk=disk, layout=make_layout("/h"), clock=FakeClock(), engine=engine)
    wanted = WantedImage(name="web", id=config_of(IMAGE), layout=layout, units=("web.service",))
    assert images.ensure([wanted], GENERATION, 60_000) == ("web",)
    folder = f"{make_layout('/h').state}/engines/{engine.name}"
    note = f"{folder}/{config_of(IMAGE).removeprefix('sha256:')}.loading"
    return [how for how, left in survivors(disk) if left.stat(note) is not None]


def test_the_note_of_a_finished_load_does_not_come_back():
    assert notes_that_may_be_back() == []
    assert notes_that_may_be_back(frozenset({"finished load's note"})) != []
