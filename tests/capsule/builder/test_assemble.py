"""What one node receives must fit together; what two kinds of nodes receive need not."""

import pytest

from capsule.builder.assemble import draft_release
from capsule.builder.config import load_release
from capsule.builder.git_source import open_work_tree, source_input
from capsule.builder.resolve import Resolved
from capsule_manifest.release import decode_release
from support.failures import fails_with
from support.repositories import Repository

_TOML = """\
format = 1
product = "acme/web"
version = "1.0"
release_counter = 1
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[platforms.trixie]
machine = "x86_64"
glibc = "2.41"
python = "3.13"
[components.app]
kind = "source"
path = "."
include = ["app"]
[components.first]
kind = "KIND"
platforms = ["bookworm"]
[[components.first.LIST]]
ITEM
[components.second]
kind = "KIND"
platforms = ["OTHER"]
[[components.second.LIST]]
ITEM
[roles.web]
components = ["app", "first", "second"]
case_collisions = "COLLISIONS"
[budgets]
d1_s = 25
"""
_UNIT = b"[Service]\nExecStart=/bin/true\nTimeoutStartSec=5\nTimeoutStopSec=5\n"
KINDS = {
    "service": ("units", 'file = "units/web.service"\nsoak_s = 1.0'),
    "files": ("files", 'source = "app/a"\ntarget = "/etc/web/a"'),
}


@pytest.fixture
def draft(tmp_path):
    repository = Repository(tmp_path / "work")

    def call(kind, other, *, collisions="warn", **files):
        listed, item = KINDS[kind]
        words = {
            "KIND": kind,
            "LIST": listed,
            "ITEM": item,
            "OTHER": other,
            "COLLISIONS": collisions,
        }
        text = _TOML
        for word, value in words.items():
            text = text.replace(word, value)
        content = {f"app/{name}": data for name, data in ({"a": b"a"} | files).items()}
        repository.commit({"release.toml": text.encode(), "units/web.service": _UNIT, **content})
        source = load_release(repository.folder / "release.toml")
        (app,) = [item for item in source.components if item.name == "app"]
        component, commit = source_input("app", repository.folder, include=app.include)
        assert commit == open_work_tree(repository.folder).source
        resolved = Resolved(source=commit, components=(component,))
        return draft_release(source, resolved, report=lambda _: None)

    return call


@pytest.mark.parametrize(
    ("kind", "error_id"), [("service", "unit-not-allowed"), ("files", "managed-file-not-allowed")]
)
def test_one_name_twice_on_one_node_is_refused_and_on_two_platforms_is_not(draft, kind, error_id):
    found = draft(kind, "trixie")
    assert [item.name for item in found.release.components] == ["app", "first", "second"]
    with fails_with(error_id):
        draft(kind, "bookworm")


def test_the_budget_is_that_of_one_node(draft):
    """Each platform needs 5 + 5 + 1 + 10 of 25 seconds; both together would need 32."""
    assert draft("service", "trixie").release.budgets.d1_ms == 25_000


def test_a_manifest_that_was_built_is_one_that_is_read(draft):
    found = draft("files", "trixie")
    assert decode_release(found.manifest) == found.release


def test_names_that_differ_by_case_are_a_warning_or_an_error_as_the_role_says(draft):
    assert draft("files", "trixie").warnings == ()
    (warning,) = draft("files", "trixie", A=b"A").warnings
    assert "app/A" in warning
    with fails_with("case-collision") as caught:
        draft("files", "trixie", A=b"A", collisions="error")
    assert caught.value.where == "role web"
