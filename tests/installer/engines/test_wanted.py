"""Which images of a release units run, and by which names an engine keeps them."""

import re
from dataclasses import replace

import pytest

from capsule_installer.engines.unit_rules import engine_problems
from capsule_installer.engines.wanted import pin_name, pinned_generation, wanted_images
from capsule_installer.staging.render import image_values
from capsule_manifest.digest import object_id
from capsule_manifest.release import Component, ComponentKind, External

IDS = ["sha256:" + digit * 64 for digit in "12"]
FOLDER = "/opt/capsule/generations/7-01234567"


def image(name, config, kind=ComponentKind.IMAGE):
    return Component(
        name=name,
        kind=kind,
        platforms=(),
        tree=object_id(name.encode()),
        entries=1,
        content_bytes=1,
        external=(
            External(type="image", name=name, digest="sha256:" + "3" * 64),
            External(type="image-config", name=name, digest=config),
        ),
    )


COMPONENTS = (image("db", IDS[0]), image("web", IDS[1]))


def test_a_placeholder_stands_for_the_id_of_an_image():
    assert image_values(COMPONENTS) == {"image.db": IDS[0], "image.web": IDS[1]}
    assert image_values([image("web", IDS[0], ComponentKind.HELPER)]) == {}
    assert image_values([image("web", "sha1:" + "0" * 40)]) == {}


def test_only_images_that_a_unit_names_are_wanted():
    units = {"b.service": f"run {IDS[1]}", "a.service": f"run {IDS[1]}", "c.service": "none"}
    (wanted,) = wanted_images(COMPONENTS, units, FOLDER)
    assert (wanted.name, wanted.id) == ("web", IDS[1])
    assert wanted.layout == f"{FOLDER}/web"
    assert wanted.units == ("a.service", "b.service")
    assert wanted_images(COMPONENTS, {"c.service": "none"}, FOLDER) == ()


REFERENCE = re.compile(r"[a-z0-9.]+(/[a-z0-9]+([._-][a-z0-9]+|__[a-z0-9]+|-+[a-z0-9]+)*)+:[\w.-]+")


@pytest.mark.parametrize("name", ["web", "a.b_c-d", "a..b", "a-", "a___b", "a--b", "a_", "0"])
def test_every_name_of_a_component_gives_a_name_that_engines_take(name):
    (wanted,) = wanted_images([image(name, IDS[0])], {"a.service": IDS[0]}, FOLDER)
    pin = pin_name(wanted, "7-01234567")
    assert REFERENCE.fullmatch(pin), pin
    assert pin.startswith("capsule.local/")
    assert pinned_generation(pin) == "7-01234567"


def test_two_components_never_share_a_name_in_the_engine():
    names = {pin_name(replace(wanted, name=name, id=image_id), "7-01234567")
             for (wanted,) in [wanted_images([COMPONENTS[0]], {"a": IDS[0]}, FOLDER)]
             for name, image_id in [("a.b", IDS[0]), ("a..b", IDS[1])]}  # fmt: skip
    assert len(names) == 2


def test_a_rendered_unit_that_would_pull_is_named_with_what_is_wrong():
    units = {
        "a.service": f"[Service]\nExecStart=/usr/bin/podman run \\\n  --cgroups=split {IDS[0]}\n",
        "b.service": f"[Service]\nExecStart=podman run --pull=never --cgroups=split {IDS[0]}\n",
        "c.service": '[Service]\nExecStop=podman "pull" registry.test/web\n',
        "d.service": "[Service]\nExecStart=/bin/true 'not closed\n",
    }
    found = list(engine_problems(units))
    assert [problem.partition(":")[0] for problem in found] == ["a.service", "c.service"]
    assert "--pull=never" in found[0]
