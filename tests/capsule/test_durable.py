import pytest

from capsule.durable import exclusive, make_folder, publish_once, read_bounded, replace_file
from capsule_manifest.errors import Failed
from support.failures import fails_with


def test_a_file_is_replaced_as_a_whole_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"one")
    replace_file(path, b"two", mode=0o644)
    assert path.read_bytes() == b"two"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_file_that_can_not_be_replaced_keeps_its_bytes(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inside").touch()
    with fails_with("controller-disk"):
        replace_file(folder, b"two")
    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


def test_what_is_published_once_is_never_published_again(tmp_path):
    path = tmp_path / "file"
    assert publish_once(path, b"one")
    assert not publish_once(path, b"two")
    assert path.read_bytes() == b"one"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    replace_file(tmp_path / "file", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert not (tmp_path / "file").is_symlink()


def test_reading_is_bounded_and_absence_is_none(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    assert read_bounded(tmp_path / "nothing", 5) is None
    with fails_with("document-invalid"):
        read_bounded(tmp_path / "file", 4)
    with fails_with("controller-disk"):
        read_bounded(tmp_path, 4)


def test_folders_are_private_and_made_with_their_parents(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_a_lock_is_held_by_one_and_freed_at_the_end(tmp_path):
    path = tmp_path / "lock"
    with exclusive(path), pytest.raises(Failed) as caught, exclusive(path):
        pass
    assert caught.value.error_id == "controller-busy"
    assert caught.value.retryable
    with exclusive(path):
        assert path.exists()
