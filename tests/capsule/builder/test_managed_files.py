"""Managed files: where they may lie, and that no two want one place."""

import pytest

from capsule.builder.committed import committed_files
from capsule.builder.config import FilesSource, ManagedFileSource
from capsule.builder.git_source import open_work_tree
from capsule.builder.managed_files import check_targets, files_input
from capsule_manifest.release import ManagedFile
from support.failures import fails_with
from support.repositories import Repository


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "work")
    made.commit({"a.toml": b"port = @{node.port}\n", "b.toml": b"x = @{nonsense}\n",
                 "c.toml": b"x = @{image.web}\n"})  # fmt: skip
    return made


def build(repository, *targets, source="a.toml", template=False):
    files = FilesSource(
        name="config",
        platforms=("b", "a"),
        files=tuple(
            ManagedFileSource(
                source=source, target=target, owner="web", group="www", mode=0o640,
                template=template,
            )
            for target in targets
        ),
    )  # fmt: skip
    return files_input(files, committed_files(open_work_tree(repository.folder), (files,)))


def managed(target):
    return ManagedFile(
        file=target[1:], target=target, owner="root", group="root", mode=0o644, template=False
    )


def test_a_target_is_the_path_in_the_tree_and_keeps_owner_and_mode(repository):
    component, files = build(repository, "/etc/web/b.toml", "/etc/web/a.toml")
    assert [entry.path for entry in component.entries] == ["etc/web/a.toml", "etc/web/b.toml"]
    assert [(item.file, item.target) for item in files] == [
        ("etc/web/a.toml", "/etc/web/a.toml"), ("etc/web/b.toml", "/etc/web/b.toml"),
    ]  # fmt: skip
    assert {(item.owner, item.group, item.mode) for item in files} == {("web", "www", 0o640)}
    # The mode on the host is the manifest's; the object itself is plain, so that stores share it.
    assert {entry.mode for entry in component.entries} == {0o644}
    assert component.platforms == ("a", "b")


@pytest.mark.parametrize(
    "target",
    [
        "/opt/capsule", "/opt/capsule/store/x", "/var/lib/capsule/hold", "/etc/capsule/policy.toml",
        "/run/x", "/proc/sys/x", "/sys/x", "/dev/null", "/usr/local/lib/systemd/system/web.service",
    ],
)  # fmt: skip
def test_a_place_of_capsule_or_the_kernel_is_refused(repository, target):
    with fails_with("managed-file-not-allowed") as caught:
        build(repository, target)
    assert caught.value.got == target


@pytest.mark.parametrize("target", ["/opt/capsules", "/running", "/etc/capsule.toml"])
def test_a_place_that_only_begins_alike_is_allowed(repository, target):
    assert build(repository, target)[1][0].target == target


def test_an_unknown_placeholder_matters_in_templates_only(repository):
    assert build(repository, "/etc/x", source="b.toml")[1][0].template is False
    with fails_with("template-invalid"):
        build(repository, "/etc/x", source="b.toml", template=True)


def test_a_managed_file_can_not_name_an_image(repository):
    assert build(repository, "/etc/x", source="c.toml")[1][0].template is False
    with fails_with("template-invalid"):
        build(repository, "/etc/x", source="c.toml", template=True)


@pytest.mark.parametrize(
    ("first", "second"), [("/etc/a", "/etc/a"), ("/etc/a", "/etc/a/b"), ("/etc/a/b", "/etc/a")]
)
def test_two_files_of_a_role_that_want_one_place_are_refused(first, second):
    with fails_with("managed-file-not-allowed") as caught:
        check_targets("web", (managed(first), managed(second)))
    assert first in caught.value.got
    assert second in caught.value.got


def test_a_file_below_another_is_found_although_a_name_sorts_between_them():
    """`/etc/a-b` sorts between `/etc/a` and `/etc/a/b`."""
    files = tuple(map(managed, ("/etc/a", "/etc/a-b", "/etc/a/b")))
    with fails_with("managed-file-not-allowed"):
        check_targets("web", files)


def test_files_side_by_side_are_allowed():
    files = tuple(map(managed, ("/etc/a", "/etc/a-b", "/etc/ab/c")))
    assert check_targets("web", files) is None
