"""The release and the unit of the page about images are built, and the host takes the unit."""

import re

import pytest

from capsule.builder.assemble import draft_release
from capsule.builder.config import load_release
from capsule.builder.git_source import open_work_tree
from capsule.builder.images.component import image_inputs, pin_images
from capsule.builder.resolve import Resolved
from capsule_installer.engines.unit_rules import engine_problems
from capsule_installer.engines.wanted import wanted_images
from capsule_installer.staging.render import image_values
from capsule_manifest.template import substitute
from support.engines import config_of
from support.images import ImageFile, write_layout
from support.indexes import cache_of
from support.repositories import Repository
from support.sources import text_of

PAGE = text_of("docs/how-to/images.md")


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def draft(tmp_path):
    """Build the page's release, whose image is a small compressed one."""
    work = Repository(tmp_path / "work")
    write_layout(work.folder / "site", ImageFile())
    work.commit({"release.toml": block("toml").encode(), "site.service": block("ini").encode()})
    source = load_release(work.folder / "release.toml")
    cache = cache_of(tmp_path / "cache")
    pins = pin_images(source, cache, {}, report=str)
    inputs = tuple(image_inputs(source, cache, pins, report=str))
    resolved = Resolved(source=open_work_tree(work.folder).source, components=inputs)
    return draft_release(source, resolved, report=str)


def test_the_unit_of_the_page_runs_the_image_of_its_release_on_a_host(draft):
    components = draft.release.components
    values = {"image.site": config_of(ImageFile()), "node.port": "8080"}
    assert image_values(components).items() <= values.items()
    units = {"site.service": substitute(block("ini"), values)}
    assert list(engine_problems(units)) == []
    (wanted,) = wanted_images(components, units, "/opt/capsule/generations/1-01234567")
    assert (wanted.name, wanted.id) == ("site", config_of(ImageFile()))
