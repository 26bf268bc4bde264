"""Staging a release whose units run an image: loaded while services run, or refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from capsule_installer.engines.base import NoImages
from capsule_installer.engines.images import EngineImages
from capsule_installer.system.disk import RealDisk
from capsule_manifest.errors import CapsuleError
from capsule_manifest.records import decode_receipt
from capsule_manifest.release import ComponentKind, Unit
from support.deliveries import Receiver, make_capsule, part
from support.engines import FakeEngine, config_of, layout_files, named_by
from support.failures import fails_with
from support.images import ImageFile, layer_of

IMAGE = ImageFile(compression="none")
OTHER = ImageFile(layers=[layer_of(other=b"other\n")], compression="none")
RUNS = "[Service]\nExecStart=podman run --pull=never --cgroups=split @{image.site} @{node.port}\n"
PULLS = "[Service]\nExecStart=podman run --cgroups=split @{image.site}\n"
PLAIN = "[Service]\nExecStart=/bin/true @{node.port}\n"


def release(unit=RUNS, named=IMAGE):
    spec = Unit(
        name="site.service",
        file="site.service",
        start_timeout_ms=1000,
        stop_timeout_ms=1000,
        soak_ms=100,
        probe=None,
    )
    return make_capsule(
        [
            part(
                "site",
                ComponentKind.IMAGE,
                layout_files(IMAGE),
                external=named_by("site", named),
            ),
            part("web", ComponentKind.SERVICE, {"site.service": unit.encode()}, units=(spec,)),
        ]
    )


class Host(Receiver):
    """A receiver whose engine is in memory."""

    def __init__(self, root):
        super().__init__(root)
        self.enrol()
        self.engine = FakeEngine(disk=RealDisk())
        self.images = EngineImages(
            disk=RealDisk(),
            layout=self.host.layout,
            clock=self.host.clock,
            engine=self.engine,
        )

    def steps(self):
        (*_, last) = self.chain().read_all()
        return [step.name for step in decode_receipt(last.envelope.payload).steps]


@pytest.fixture
def host(tmp_path):
    root = tmp_path / "host"
    root.mkdir(mode=0o755)
    return Host(str(root))


def test_an_image_is_loaded_from_the_generation_and_kept_for_it(host):
    capsule = release()
    host.receive(capsule)
    assert host.engine.pins() == {f"capsule.local/site:{capsule.generation}": config_of(IMAGE)}
    assert host.engine.loads == [host.path(capsule, "site")]
    assert "images" in host.steps()
    unit = Path(host.path(capsule, "units/site.service")).read_text()
    assert f"--cgroups=split {config_of(IMAGE)} 8101" in unit


def test_an_image_that_no_unit_runs_needs_no_engine(host):
    host.images = None
    host.receive(release(unit=PLAIN))
    assert host.engine.loads == []
    assert "images" not in host.steps()


def test_a_host_without_an_engine_refuses_and_seals_nothing(host):
    host.images = NoImages()
    capsule = release()
    with fails_with("engine-missing"):
        host.receive(capsule)
    assert host.marker(capsule) is None


@pytest.mark.parametrize(
    ("capsule", "breaks", "error_id"),
    [
        (release(named=OTHER), False, "image-digest-wrong"),
        (release(), True, "image-digest-wrong"),
        (release(unit=PULLS), False, "rehearsal-failed"),
    ],
    ids=["another layout", "another id", "may pull"],
)
def test_what_can_not_be_what_was_signed_is_refused_and_not_sealed(host, capsule, breaks, error_id):
    if breaks:
        host.engine.breaks = {host.path(capsule, "site"): config_of(OTHER)}
    with fails_with(error_id):
        host.receive(capsule)
    assert host.marker(capsule) is None


@pytest.mark.parametrize("port", ["8101", "8102"])
def test_a_staging_of_what_is_there_loads_again_what_the_engine_lost(host, port):
    capsule = release(unit=RUNS.replace("@{node.port}", ""))
    host.receive(capsule)
    host.engine.prune(every_unused=True)
    sent = host.receive(capsule, route=host.route(port=port))
    assert host.engine.holds(config_of(IMAGE))
    assert sent["reused_objects"] == sent["objects"]
    assert len(host.engine.loads) == 2


def test_a_staging_that_the_engine_stopped_is_finished_by_the_next(host):
    capsule = release()
    host.engine.refuses = "no space left on device"
    with pytest.raises(CapsuleError) as failed:
        host.receive(capsule)
    assert failed.value.error_id == "image-load-failed"
    assert host.marker(capsule) is None
    host.engine.refuses = ""
    host.receive(capsule)
    assert host.marker(capsule) is not None
    assert host.engine.holds(config_of(IMAGE))


def test_an_older_spelling_of_a_layout_is_the_same_image(host):
    """What index.json says beside digests, such as a name, is nobody's business."""
    files = layout_files(IMAGE)
    files["index.json"] = files["index.json"].replace(b'{"schemaVersion": 2, ', b'{"x": 1, ')
    capsule = release()
    component = replace(part("site", ComponentKind.IMAGE, files), external=named_by("s", IMAGE))
    unit = [item for item in capsule.release.components if item.name == "web"]
    assert unit
    spec = unit[0].units
    web = part("web", ComponentKind.SERVICE, {"site.service": RUNS.encode()}, units=spec)
    host.receive(make_capsule([component, web]))
    assert host.engine.holds(config_of(IMAGE))
