import re
import subprocess

import pytest

from capsule.transport.base import Limits
from capsule.transport.ssh_entry import (
    Access,
    Timing,
    check_hops,
    client_config,
    known_hosts,
    remote_command,
)
from capsule_manifest.route import CA_MARK, Endpoint, Hop
from support.failures import fails_with

KEY = "ssh-ed25519 AAAA"
LIMITS = Limits(total_s=2.5, idle_s=2.0)


def hop(index):
    return Hop(
        address=f"h{index}.example", port=22 + index, user="deploy", host_key=f"{KEY}{index}"
    )


def endpoint(**changes):
    return Endpoint(**{"kind": "ssh", "address": "h.example", "host_key": KEY, **changes})


def settings(text, name):
    """Return what OpenSSH itself understands of a configuration for one host."""
    shown = subprocess.run(
        ["ssh", "-G", "-F", "/dev/stdin", name],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return dict(line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line)


def test_openssh_understands_every_option_that_is_written():
    hops = (hop(0), hop(1))
    text = client_config(hops, Access(identity="/k/id"), timing=Timing(), folder="/private")
    first, last = settings(text, "capsule-hop-0"), settings(text, "capsule-hop-1")
    assert (first["hostname"], first["port"], first["user"]) == ("h0.example", "22", "deploy")
    assert last["hostname"] == "h1.example"
    assert "proxycommand" not in first
    assert last["proxycommand"] == "ssh -F /private/config -W [%h]:%p capsule-hop-0"
    assert last["stricthostkeychecking"] == "true"
    assert last["identitiesonly"] == "yes"
    assert last["batchmode"] == "yes"
    assert last["updatehostkeys"] == "false"
    assert last["identityagent"] == "none"
    assert last["userknownhostsfile"] == "/private/known-1"
    assert last["ciphers"].startswith("aes128-gcm@openssh.com,aes256-gcm@openssh.com")
    assert last["connecttimeout"] == "10"
    assert last["identityfile"] == "/k/id"


def test_a_path_with_blanks_and_percent_signs_stays_one_path():
    access = Access(identity="/my keys/100%d")
    text = client_config((hop(0),), access, timing=Timing(), folder="/t")
    assert settings(text, "capsule-hop-0")["identityfile"] == "/my keys/100%%d"


def test_a_path_that_would_end_its_quotes_is_refused():
    with fails_with("endpoint-invalid"):
        client_config((hop(0),), Access(identity='/k"\n  Port 1'), timing=Timing(), folder="/t")


def test_an_authority_is_pinned_for_this_address_alone():
    pinned = Hop(address="h", port=2222, user="root", host_key=f"{CA_MARK}{KEY}")
    assert known_hosts(pinned) == f"@cert-authority h {KEY}\n"


def test_a_certificate_is_for_the_name_and_the_connection_goes_to_the_address():
    way = endpoint(address="192.0.2.7", name="w1.example", host_key=f"{CA_MARK}{KEY}")
    hops = check_hops(way, "n1")
    assert known_hosts(hops[-1]) == f"@cert-authority w1.example {KEY}\n"
    told = settings(
        client_config(hops, Access(), timing=Timing(), folder="/private"), "capsule-hop-0"
    )
    assert (told["hostname"], told["hostkeyalias"]) == ("192.0.2.7", "w1.example")


@pytest.mark.parametrize(
    "changes",
    [
        {"address": None},
        {"address": "-oProxyCommand=x"},
        {"address": "a b"},
        {"address": "a\nPort 1"},
        {"name": "a\nPort 1"},
        {"user": "-l"},
        {"user": "x y"},
        {"host_key": None},
        {"host_key": "ssh-ed25519"},
        {"host_key": f"{KEY}\n@cert-authority * {KEY}"},
        {"jump": (Hop(address="", port=22, user="root", host_key=KEY),)},
        {"jump": (hop(0), hop(1), hop(2), hop(3), hop(4))},
    ],
)
def test_a_value_that_could_say_more_than_itself_is_refused(changes):
    with fails_with("endpoint-invalid"):
        check_hops(endpoint(**changes), "n1")


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "fe80::1%eth0", "h-1.example"])
def test_names_and_addresses_of_both_families_are_taken(address):
    assert check_hops(endpoint(address=address), "n1")[-1].address == address


def local(command, **environment):
    """Run a remote command as a login shell would."""
    return subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
    )


@pytest.mark.parametrize(
    "argument", ["", "a b", "it's", '"', "$HOME", "`id`", "\\", "*", "\n", "!", "ü", "-n"]
)
def test_an_argument_arrives_as_it_is(argument):
    command = remote_command(["printf", "%s", argument], user="root", limits=LIMITS, mark="m" * 32)
    assert local(command).stdout.decode() == "m" * 32 + "\n" + argument


def test_the_mark_is_not_in_the_command_itself():
    command = remote_command(["true"], user="root", limits=LIMITS, mark="0123456789abcdef")
    assert "0123456789abcdef" not in command


def test_a_user_other_than_root_becomes_root_without_being_asked(tmp_path):
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\necho "asked: $1 $2" >&2\nshift 2\nexec "$@"\n')
    sudo.chmod(0o755)
    command = remote_command(["echo", "done"], user="deploy", limits=LIMITS, mark="mm")
    ended = local(command, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert ended.stdout == b"mm\ndone\n"
    assert ended.stderr == b"asked: -n --\n"


def test_the_host_ends_a_program_that_outlives_its_limit():
    command = remote_command(["sleep", "60"], user="root", limits=LIMITS, mark="mm")
    seconds = re.search(r"timeout -k 5 (\d+)", command)
    assert seconds is not None
    assert int(seconds[1]) == 8
    # 124 is what timeout(1) answers; shortened so that the test need not wait.
    assert local(command.replace("timeout -k 5 8", "timeout -k 5 0.1")).returncode == 124
