"""What a unit may not do on a host is refused when it is built, by line."""

from dataclasses import replace

import pytest

from capsule.builder.committed import committed_files
from capsule.builder.config import ServiceSource, UnitSource
from capsule.builder.git_source import open_work_tree
from capsule.builder.services import check_images, images_named, service_input
from capsule_manifest.digest import object_id
from capsule_manifest.errors import Refused
from capsule_manifest.release import Component, ComponentKind
from support.repositories import Repository

_TIMES = "TimeoutStartSec=5\nTimeoutStopSec=5\n"
_DIGEST = "sha256:" + "a" * 64


def build(tmp_path, lines, *, name="web.service", steps=()):
    repository = Repository(tmp_path / "work")
    repository.commit({name: f"[Service]\n{lines}\n{_TIMES}".encode()})
    source = ServiceSource(
        name="web",
        platforms=(),
        units=(UnitSource(file=name, soak_ms=0, probe=None),),
        guarded_steps=steps,
    )
    work_tree = open_work_tree(repository.folder)
    return service_input(source, committed_files(work_tree, (source,)))


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=/usr/bin/curl -O x",
        "ExecStart=-/usr/bin/curl -O x",
        "ExecStart=/usr/bin/env curl x",
        "ExecStart=/usr/bin/python3 -m pip install x",
        'ExecStart=/bin/sh -c "cd /x && curl x > y"',
        "ExecStart=/bin/bash -ec 'wget x; exec serve'",
        "ExecStart=/bin/sh -c 'A=$(git clone x) serve'",
        "ExecStart=/app --from https://example.org/app.tar",
        "ExecStart=/app git+ssh://example.org/app",
        "ExecStart=/usr/bin/podman run registry.example.org/app",
        f"ExecStart=/usr/bin/podman run registry.example.org/app@{_DIGEST}",
        "ExecStart=/usr/bin/docker run --pull=never registry.example.org/app:latest",
        f"ExecStart=/usr/bin/env podman run app@{_DIGEST}",
        "ExecStart=/app\nExecStop=/usr/bin/curl x",
        "ExecStart=/usr/bin/podman run --cgroups=split @{image.app}",
        "ExecStart=/usr/bin/podman run --pull=never --cgroups=split @@{image.app}",
        "ExecStart=/app\nExecStop=/usr/bin/podman pull registry.example.org/app",
    ],
)
def test_a_unit_that_would_fetch_at_start_is_refused(tmp_path, line):
    with pytest.raises(Refused) as caught:
        build(tmp_path, line)
    assert caught.value.error_id == "unit-not-allowed"
    assert "web.service:" in caught.value.where


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=@{generation}/app/serve --config /etc/git",
        "ExecStart=/app --listen http://127.0.0.1:8080",
        "ExecStart=/bin/sh -c 'exec serve'",
        f"ExecStart=/usr/bin/podman run --pull=never --cgroups=split app@{_DIGEST}",
        "ExecStart=/usr/bin/podman run --pull=never --cgroups=split @{image.app} serve",
        "Type=exec\nExecStart=podman run --pull=never --cgroups=disabled @{image.app}",
        "ExecStart=/app\nExecStop=/usr/bin/podman stop app",
        "ExecStart=/old\nExecStart=\nExecStart=/new",
    ],
)
def test_a_unit_that_brings_everything_is_accepted(tmp_path, line):
    component, (unit,) = build(tmp_path, line)
    assert [entry.path for entry in component.entries] == ["web.service"]
    assert (unit.start_timeout_ms, unit.stop_timeout_ms) == (5000, 5000)


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=/usr/bin/podman run --pull=never @{image.app}",
        "ExecStart=/usr/bin/podman run --pull=never --cgroups=enabled @{image.app}",
        "ExecStart=/usr/bin/podman run -d --pull=never --cgroups=split @{image.app}",
        "ExecStart=/usr/bin/docker run --pull=never @{image.app}",
        "Type=notify\nExecStart=/usr/bin/podman run --pull=never --cgroups=split @{image.app}",
        "Type=forking\nExecStart=/usr/bin/podman run --pull=never --cgroups=split @{image.app}",
    ],
)
def test_a_container_that_would_outlive_its_unit_or_could_not_be_proved_is_refused(tmp_path, line):
    with pytest.raises(Refused) as caught:
        build(tmp_path, line)
    assert caught.value.error_id == "unit-not-allowed"


def service(name):
    return Component(
        name=name,
        kind=ComponentKind.SERVICE,
        platforms=(),
        tree=object_id(b""),
        entries=1,
        content_bytes=1,
    )


def test_a_role_needs_every_image_that_its_units_run(tmp_path):
    repository = Repository(tmp_path / "work")
    text = f"[Service]\nExecStart=podman run @{{image.app}} @@{{image.no}} @{{node.id}}\n{_TIMES}"
    repository.commit({"web.service": text.encode()})
    source = ServiceSource(
        name="web",
        platforms=(),
        units=(UnitSource(file="web.service", soak_ms=0, probe=None),),
        guarded_steps=(),
    )
    committed = committed_files(open_work_tree(repository.folder), (source,))
    named = {"web": images_named(source, committed)}
    assert named == {"web": frozenset({"app"})}
    image = replace(service("app"), kind=ComponentKind.IMAGE)
    check_images("web", [image, service("web")], named)
    check_images("other", [service("other")], named)
    for others in ([], [replace(image, kind=ComponentKind.HELPER)], [replace(image, name="b")]):
        with pytest.raises(Refused) as caught:
            check_images("web", [*others, service("web")], named)
        assert (caught.value.error_id, caught.value.got) == ("unit-not-allowed", "@{image.app}")


@pytest.mark.parametrize(
    "key", ["ExecStartPre", "ExecStartPost", "ExecCondition", "ExecStopPost", "ExecReload"]
)
def test_a_line_outside_of_the_guard_must_be_declared(tmp_path, key):
    lines = f"ExecStart=/app\n{key}=-/bin/migrate --check"
    with pytest.raises(Refused) as caught:
        build(tmp_path / "a", lines)
    assert caught.value.error_id == "unit-not-allowed"
    assert caught.value.got == f"{key}=-/bin/migrate --check"
    build(tmp_path / "b", lines, steps=(("/bin/migrate", "--check"),))


@pytest.mark.parametrize("lines", ["", "ExecStart=", "ExecStart=/app\nExecStart="])
def test_a_service_that_starts_nothing_is_refused(tmp_path, lines):
    with pytest.raises(Refused) as caught:
        build(tmp_path, lines)
    assert caught.value.error_id == "unit-invalid"


@pytest.mark.parametrize("name", ["web.timer", "web.socket", "web.target", "web.path"])
def test_a_unit_without_a_process_is_refused(tmp_path, name):
    with pytest.raises(Refused) as caught:
        build(tmp_path, "ExecStart=/app", name=name)
    assert (caught.value.error_id, caught.value.got) == ("unit-not-allowed", name)


@pytest.mark.parametrize("value", ["infinity", "0", "", "5 parsecs", "-1"])
def test_a_time_without_a_bound_is_refused(tmp_path, value):
    repository = Repository(tmp_path / "work")
    text = f"[Service]\nExecStart=/app\nTimeoutStartSec={value}\nTimeoutStopSec=5\n"
    repository.commit({"web.service": text.encode()})
    source = ServiceSource(
        name="web",
        platforms=(),
        units=(UnitSource(file="web.service", soak_ms=0, probe=None),),
        guarded_steps=(),
    )
    committed = committed_files(open_work_tree(repository.folder), (source,))
    with pytest.raises(Refused) as caught:
        service_input(source, committed)
    assert caught.value.error_id == "unit-invalid"
