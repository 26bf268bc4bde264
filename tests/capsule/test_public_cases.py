"""What users of other fleet tools met in their inventories, by its symptom."""

import pytest

from capsule.inventory import read_fleet
from capsule_manifest.errors import Refused

HEAD = """\
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
[jumps.left]
address = "left.example"
host_key = "ssh-ed25519 AAAA"
[jumps.right]
address = "right.example"
host_key = "ssh-ed25519 AAAA"
"""
KEY = 'host_key = "ssh-ed25519 AAAA"'


def node(name: str, *lines: str) -> str:
    own = (f"[nodes.{name}]", 'role = "web"', 'platform = "p"', f'lane = "{name}"', *lines)
    return "\n".join(own) + "\n"


def problems(text, tmp_path) -> list[str]:
    """Return what is wrong with an inventory; empty when it is taken."""
    try:
        read_fleet(text.encode(), folder=tmp_path, where="fleet.toml")
    except Refused as refused:
        found, error = [], refused
        while error is not None:
            found.append(str(error))
            error = error.__cause__
        return found
    return []


@pytest.mark.parametrize(
    "other",
    [
        ('address = "web.example"', KEY),
        ('address = "WEB.example"', KEY),
        ('address = "web.example"', KEY, "port = 22"),
        ('address = "web.example"', KEY, 'user = "deploy"'),
    ],
)
def test_a_host_that_is_listed_under_two_names_is_refused_and_not_worked_on_twice(other, tmp_path):
    text = HEAD + node("n1", 'address = "web.example"', KEY) + node("n2", *other)
    [problem] = problems(text, tmp_path)
    assert "nodes.n2.address" in problem
    assert "n1" in problem


@pytest.mark.parametrize(
    "other",
    [
        ('address = "web2.example"', KEY),
        ('address = "web.example"', KEY, "port = 2222"),
        ('address = "web.example"', KEY, 'jump = ["right"]'),
    ],
)
def test_hosts_that_differ_in_address_port_or_way_are_two(other, tmp_path):
    first = node("n1", 'address = "web.example"', KEY, 'jump = ["left"]')
    assert problems(HEAD + first + node("n2", *other), tmp_path) == []


def test_a_host_whose_key_nobody_gave_is_refused_before_anybody_could_be_asked(tmp_path):
    text = HEAD + node("n1", 'address = "web.example"')
    [problem] = problems(text, tmp_path)
    assert "nodes.n1" in problem
    assert "host_key or host_ca" in problem
