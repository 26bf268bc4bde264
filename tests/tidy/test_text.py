"""What no tracked file may contain."""

import re

import pytest

from support.sources import modules, text_of, tracked

# Hosts that a link or an identifier may name: specifications, and names reserved for examples.
HOSTS = re.compile(
    r"(^|\.)(example(\.(com|org|net))?|test|invalid|localhost|in-toto\.io|slsa\.dev|spdx\.(dev|org)"
    r"|cyclonedx\.org|json-schema\.org|w3\.org|rfc-editor\.org|sigstore\.dev|keepachangelog\.com"
    r"|token\.actions\.githubusercontent\.com|github\.com|gitlab\.com"  # issuers of identities
    r"|semver\.org|apache\.org|freedesktop\.org|opencontainers\.org|python\.org|schema\.org|\d+\.\d+\.\d+\.\d+|host|h)$"
)
# Written in pieces, so that this file passes its own test.
REGISTRIES = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "crates" + ".io"]
PLACES = ["/" + "work/", "/tmp/" + "brief", "/opt/" + "pypi", "/opt/" + "wheels"]
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]


def found(pattern):
    """Return file, line number and match for every match in a tracked file."""
    compiled = re.compile(pattern)
    return [
        f"{name}:{number}: {match.group()}"
        for name in tracked()
        for number, line in enumerate(text_of(name).splitlines(), 1)
        for match in compiled.finditer(line)
    ]


def host_of(text):
    """Return the host of an address: without user, password and port."""
    # `@{` begins a placeholder of ours, such as a port.
    return re.sub(r"^[^@]*@(?!\{)", "", text.rpartition("//")[2]).partition(":")[0]


@pytest.mark.parametrize("host", REGISTRIES)
def test_no_package_registry_is_named(host):
    assert found(re.escape(host)) == []


def test_every_host_in_an_address_is_a_specification_or_an_example():
    # Placeholders begin with a brace or a sign; an address of digits is nobody's name.
    addresses = found(r"\bhttps?://(?![{$<%@\[.\\(])[^\s/\"'`)>\]]+")
    foreign = [text for text in addresses if not HOSTS.search(host_of(text))]
    assert foreign == []


@pytest.mark.parametrize("place", PLACES)
def test_no_file_names_a_place_on_the_machine_it_was_written_on(place):
    assert found(r"(?<![\w.~*}-])" + re.escape(place)) == []


@pytest.mark.parametrize("word", UNFINISHED)
def test_nothing_is_left_unfinished(word):
    assert found(rf"\b{word}\b") == []


def test_every_module_says_what_it_offers():
    missing = [
        module.name
        for module in modules()
        if not module.name.endswith(("__init__.py", "__main__.py"))
        and "/migrations/" not in module.name
        and "\n__all__" not in text_of(module.name)
    ]
    assert missing == []


def test_every_text_file_ends_with_one_line_end():
    odd = [
        name
        for name in tracked()
        if name.endswith((".py", ".md", ".toml", ".lock"))
        and text_of(name)
        and (not text_of(name).endswith("\n") or text_of(name).endswith("\n\n"))
    ]
    assert odd == []
