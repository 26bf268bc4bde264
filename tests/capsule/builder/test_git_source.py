"""Sources: what a commit has, and nothing that depends on who looks at it."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest

from capsule.builder.git_source import clone_at, open_work_tree, source_input
from capsule_manifest.errors import Refused
from capsule_manifest.tree_entry import EntryKind
from support.repositories import Repository

FILES = {"app/main.py": b"print(1)\n", "app/data/x.txt": b"x\r\n", "README.md": b"hello\n"}


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "work")


def entries_of(folder, **options):
    component, _ = source_input("app", folder, **options)
    return component.entries


def content(entry):
    with entry.open() as stream:
        return stream.read()


def refusal(folder, **options):
    with pytest.raises(Refused) as caught:
        source_input("app", folder, **options)
    return caught.value


def test_a_source_has_exactly_the_files_of_its_commit(repository):
    commit = repository.commit(FILES)
    component, source = source_input("app", repository.folder)
    assert {entry.path: content(entry) for entry in component.entries} == FILES
    assert source.commit == commit
    assert source.tree == repository.git("rev-parse", "HEAD^{tree}")
    assert source.date_s == 1700000000
    assert [(item.type, item.digest) for item in component.external] == [
        ("git-commit", f"sha1:{commit}")
    ]


def test_a_folder_of_a_work_tree_is_a_source_of_its_own(repository):
    repository.commit(FILES)
    found = {entry.path for entry in entries_of(repository.folder / "app")}
    assert found == {"main.py", "data/x.txt"}


def test_include_takes_whole_names_only(repository):
    repository.commit({**FILES, "application/x": b"", "app.py": b""})
    found = {entry.path for entry in entries_of(repository.folder, include=("app", "README.md"))}
    assert found == set(FILES)


def test_an_include_without_a_committed_file_is_refused(repository):
    repository.commit(FILES)
    error = refusal(repository.folder, include=("app", "docs"))
    assert (error.error_id, error.got) == ("source-empty", "docs")


def test_the_executable_bit_and_links_are_kept(repository):
    repository.write({"run.sh": b"#!/bin/sh\n"})
    (repository.folder / "run.sh").chmod(0o775)
    (repository.folder / "start").symlink_to("run.sh")
    repository.commit()
    found = {entry.path: entry for entry in entries_of(repository.folder)}
    assert found["run.sh"].mode == 0o755
    assert (found["start"].kind, found["start"].target) == (EntryKind.LINK, "run.sh")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda r: r.write({"app/main.py": b"print(2)\n"}), "app/main.py"),
        (lambda r: r.write({"new.py": b""}), "new.py"),
        (lambda r: (r.folder / "README.md").unlink(), "README.md"),
        (lambda r: (r.write({"s": b""}), r.git("add", "s")), "s"),
    ],
    ids=["changed", "untracked", "removed", "added"],
)
def test_a_dirty_work_tree_is_refused_with_what_is_dirty(repository, change, shown):
    repository.commit(FILES)
    change(repository)
    # Also when the dirt lies beside the source: the manifest names the commit of the whole tree.
    error = refusal(repository.folder / "app")
    assert error.error_id == "source-dirty"
    assert shown in error.got


def test_ignored_files_are_neither_dirt_nor_content(repository):
    repository.commit({**FILES, ".gitignore": b"*.log\n"})
    repository.write({"debug.log": b"secret"})
    assert "debug.log" not in {entry.path for entry in entries_of(repository.folder)}


@pytest.mark.parametrize("kind", ["no repository", "no commit", "no folder"])
def test_a_source_outside_of_git_is_refused(tmp_path, kind):
    folder = tmp_path / "work"
    if kind == "no commit":
        Repository(folder)
    elif kind == "no repository":
        folder.mkdir()
    assert refusal(folder).error_id == "source-not-git"


def test_a_submodule_is_refused_by_name(repository, tmp_path):
    inner = Repository(tmp_path / "inner")
    inner.commit(FILES)
    repository.commit(FILES)
    repository.git(
        "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.folder), "lib"
    )
    repository.commit()
    error = refusal(repository.folder)
    assert (error.error_id, error.got) == ("source-entry-refused", "lib")
    assert "submodule" in error.what


def test_an_lfs_pointer_is_refused_by_name(repository):
    pointer = (
        b"version https://git-lfs.example/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    )
    repository.commit({**FILES, "model.bin": pointer})
    error = refusal(repository.folder)
    assert (error.error_id, error.got) == ("source-entry-refused", "model.bin")


@pytest.mark.parametrize("attribute", ["export-subst", "filter=crypt"])
def test_a_file_whose_bytes_git_would_rewrite_is_refused(repository, attribute):
    attributes = f"version.txt {attribute}\n".encode()
    repository.commit({**FILES, "version.txt": b"$Format:%H$\n", ".gitattributes": attributes})
    error = refusal(repository.folder)
    assert (error.error_id, error.got) == ("source-entry-refused", "version.txt")


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "app/../../outside"])
def test_a_link_that_leaves_the_source_is_refused(repository, target):
    repository.commit(FILES)
    (repository.folder / "link").symlink_to(target)
    repository.commit()
    assert refusal(repository.folder).error_id == "link-escapes"


def test_a_name_that_is_not_utf8_is_refused_and_shown_escaped(repository):
    repository.commit(FILES)
    (repository.folder / os.fsdecode(b"b\xffd")).touch()
    repository.commit()
    error = refusal(repository.folder)
    assert error.error_id == "path-invalid"
    assert r"b\xffd" in error.got


def test_line_end_conversion_of_the_checkout_changes_nothing(repository):
    repository.commit({**FILES, ".gitattributes": b"*.txt text eol=crlf\n", "a.txt": b"a\nb\n"})
    found = {entry.path: entry for entry in entries_of(repository.folder)}
    assert content(found["a.txt"]) == b"a\nb\n"


def test_neither_hooks_nor_filters_nor_monitors_of_the_repository_run(repository, tmp_path):
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
    program.chmod(0o755)
    repository.commit({**FILES, ".gitattributes": b"README.md filter=spy\n"})
    repository.git("config", "filter.spy.clean", str(program))
    repository.git("config", "filter.spy.required", "true")
    repository.git("config", "core.fsmonitor", str(program))
    hooks = repository.folder / ".git" / "hooks"
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        (hooks / name).write_bytes(program.read_bytes())
        (hooks / name).chmod(0o755)
    # A newer time makes git read the file again, which is when a filter would run.
    os.utime(repository.folder / "README.md", (1, 1))
    assert {e.path for e in entries_of(repository.folder, include=("app",))} == {
        "app/main.py",
        "app/data/x.txt",
    }
    assert not ran.exists()


def test_the_settings_of_the_user_change_nothing(repository, tmp_path, monkeypatch):
    repository.commit(FILES)
    expected = [(entry.path, content(entry)) for entry in entries_of(repository.folder)]
    settings = tmp_path / "gitconfig"
    settings.write_text("[core]\n\tautocrlf = true\n\texcludesFile = /nowhere\n[status]\n\tx = [\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert [(entry.path, content(entry)) for entry in entries_of(repository.folder)] == expected


def test_a_replacement_object_is_not_the_commit(repository):
    first = repository.commit(FILES)
    blob = repository.git("rev-parse", f"{first}:README.md")
    (repository.folder / ".git" / "other").write_bytes(b"other\n")
    other = repository.git("hash-object", "-w", str(repository.folder / ".git" / "other"))
    repository.git("replace", blob, other)
    found = {entry.path: entry for entry in entries_of(repository.folder)}
    assert content(found["README.md"]) == b"hello\n"


def test_reading_a_source_leaves_the_index_as_it_was(repository):
    repository.commit(FILES)
    os.utime(repository.folder / "README.md", (1, 1))
    index = repository.folder / ".git" / "index"
    before = index.read_bytes()
    entries_of(repository.folder)
    assert index.read_bytes() == before


def test_an_entry_can_be_read_again_and_git_ends_with_the_last_one(repository):
    repository.commit(FILES)
    before = children()
    entries = entries_of(repository.folder)
    started = children() - before
    assert [content(entries[0]) for _ in range(2)] == [b"hello\n", b"hello\n"]
    assert len(started) == 1
    del entries
    gc.collect()
    assert not children() & started


def test_a_large_file_is_read_whole(repository):
    large = bytes(range(256)) * 70_000
    repository.commit({"large.bin": large})
    (entry,) = entries_of(repository.folder)
    assert (entry.size_bytes, content(entry)) == (len(large), large)


def children():
    """Return the ids of the `git cat-file` processes that this one has started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            arguments = (folder / "cmdline").read_bytes()
            if int(parent) == os.getpid() and b"cat-file" in arguments:
                found.add(folder.name)
    return found


def test_two_clones_in_other_folders_give_the_same_entries(repository, tmp_path):
    repository.commit(FILES)
    clone = tmp_path / "elsewhere" / "clone"
    repository.git("clone", "--quiet", "--no-local", str(repository.folder), str(clone))
    assert [(e.path, e.mode, content(e)) for e in entries_of(clone)] == [
        (e.path, e.mode, content(e)) for e in entries_of(repository.folder)
    ]
    assert open_work_tree(clone).source == open_work_tree(repository.folder).source


@pytest.mark.parametrize("kind", ["whole", "shallow", "linked work tree", "sha256"])
def test_a_commit_is_checked_out_elsewhere_with_the_same_entries(tmp_path, kind):
    """A CI service has a shallow clone; a developer has work trees that share one repository."""
    repository = Repository(tmp_path / "work")
    if kind == "sha256":
        other = tmp_path / "of-sha256"
        repository.git("init", "--quiet", "--object-format=sha256", str(other))
        repository.folder = other
    repository.commit({"app/main.py": b"print(0)\n"})
    repository.commit({**FILES, ".gitattributes": b"*.txt text eol=crlf\n"})
    folder = repository.folder
    if kind == "shallow":
        folder = tmp_path / "shallow"
        repository.git("clone", "--quiet", "--depth=1", f"file://{repository.folder}", str(folder))
    elif kind == "linked work tree":
        folder = tmp_path / "linked"
        repository.git("worktree", "add", "--quiet", "--detach", str(folder))
    work_tree = open_work_tree(folder)
    clone = tmp_path / "deep" / "clone"
    clone_at(work_tree, clone)
    assert open_work_tree(clone).source == work_tree.source
    there, here = entries_of(clone), entries_of(folder)
    assert [(item.path, item.mode, content(item)) for item in there] == [
        (item.path, item.mode, content(item)) for item in here
    ]
    (clone / "README.md").write_bytes(b"changed\n")
    assert open_work_tree(folder).source == work_tree.source, "no file is shared"
