"""Whose socket a path is, as the host and the caller's network show it."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from capsule_installer.guard.notify import caller_of


@pytest.fixture
def folder(monkeypatch):
    # A socket's name is short; pytest's own folder may not be.
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.chdir(made)
        yield Path(made)


@pytest.fixture
def bind():
    bound = []

    def one(name):
        bound.append(socket.socket(socket.AF_UNIX))
        bound[-1].bind(str(name))
        return bound[-1]

    yield one
    for link in bound:
        link.close()


def is_outside(path):
    return caller_of(os.getpid()).is_outside(str(path))


def test_a_socket_of_the_callers_own_network_is_its_own(folder, bind):
    bind(folder / "s")
    assert not is_outside(folder / "s")


def test_a_socket_that_its_network_does_not_list_is_anothers(folder, bind):
    bind(folder / "s").close()
    assert is_outside(folder / "s")


def test_what_is_no_socket_is_nobodys(folder):
    (folder / "file").touch()
    assert not is_outside(folder / "file")
    assert not is_outside(folder / "nothing")


def test_a_name_that_only_ends_like_anothers_socket_does_not_hide_it(folder, bind):
    bind(folder / "s").close()
    decoy = f"x {folder}/s"
    Path(decoy).parent.mkdir(parents=True)
    bind(decoy)
    assert is_outside(folder / "s")


@pytest.mark.usefixtures("folder")
def test_a_relative_name_is_outside_where_the_host_has_a_socket(bind):
    bind("s")
    assert is_outside("s")
    assert not is_outside("nothing")
