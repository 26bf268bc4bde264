"""What a trapped call means, from the bytes that a caller's memory holds."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_installer.guard.syscalls import AARCH64, X86_64
from capsule_installer.guard.trapped import Caller, Notice, judge, parse_notice

AT = 0x7000_0000


def inet(host, port):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)


def inet6(host, port):
    packed = socket.inet_pton(socket.AF_INET6, host)
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0) + packed + bytes(4)


def netlink():
    return struct.pack("=HHII", socket.AF_NETLINK, 0, 0, 0)


def unix(path):
    return struct.pack("=H", socket.AF_UNIX) + path + b"\0"


def caller(memory=b"", *, outside=()):
    def read(at, count):
        start = at - AT
        return memory[start : start + count] if 0 <= start < len(memory) else b""

    return Caller(
        executable="/usr/bin/x", command=("x", "y"), read=read, is_outside=lambda p: p in outside
    )


def notice(call, *arguments, arch=X86_64):
    padded = (*arguments, *[0] * (6 - len(arguments)))
    return Notice(cookie=1, pid=42, number=arch.numbers[call], arguments=padded)


def connect(address, **known):
    return judge(notice("connect", 3, AT, len(address)), X86_64, caller(address, **known))


@pytest.mark.parametrize(
    ("address", "target"),
    [
        (inet("192.0.2.1", 443), "192.0.2.1:443"),
        (inet("127.0.0.1", 5432), "127.0.0.1:5432"),
        (inet6("2001:db8::1", 80), "[2001:db8::1]:80"),
        (inet6("::1", 80), "[::1]:80"),
        (struct.pack("=H", 40) + bytes(14), "vsock"),
    ],
)
def test_a_connect_is_denied_and_says_where_to_and_who(address, target):
    finding = connect(address).finding
    assert (finding.call, finding.target, finding.pid) == ("connect", target, 42)
    assert (finding.executable, finding.command) == ("/usr/bin/x", ("x", "y"))


@pytest.mark.parametrize("address", [inet("127.0.0.1", 53), inet6("::1", 53)])
def test_the_resolver_sink_may_be_asked(address):
    verdict = connect(address)
    assert verdict.finding is None
    assert verdict.asks


@pytest.mark.parametrize(
    "address",
    [
        b"",
        b"\x02",
        struct.pack("=H", socket.AF_UNSPEC) + bytes(14),
        inet("192.0.2.1", 0),
        netlink(),
        unix(b"\0abstract"),
        unix(b"/tmp/own.sock"),
    ],
)
def test_what_reaches_nobody_is_left_to_the_kernel(address):
    verdict = connect(address)
    assert verdict.finding is None
    assert not verdict.asks


def test_a_socket_that_somebody_outside_serves_is_a_violation():
    path = b"/run/systemd/private"
    finding = connect(unix(path), outside={path.decode()}).finding
    assert finding.target == "/run/systemd/private"


def test_an_address_that_can_not_be_read_is_told_too():
    # Another thread may map it again before the kernel looks.
    verdict = judge(notice("connect", 3, 1, 16), X86_64, caller(b""))
    assert verdict.finding.target == "an address that can't be read"


def test_a_datagram_to_an_address_is_one():
    address = inet("192.0.2.1", 9)
    found = judge(notice("sendto", 3, 0, 0, 0, AT, len(address)), X86_64, caller(address)).finding
    assert (found.call, found.target) == ("sendto", "192.0.2.1:9")


def test_a_question_to_the_kernel_about_the_network_inside_is_none():
    address = netlink()
    asked = judge(notice("sendto", 3, 0, 0, 0, AT, len(address)), X86_64, caller(address))
    assert asked.finding is None
    header = struct.pack("=QI", AT + 64, len(address)).ljust(64, b"\0")
    assert judge(notice("sendmsg", 3, AT), X86_64, caller(header + address)).finding is None


def test_a_message_is_judged_by_the_address_in_its_header():
    header = struct.pack("=QI", AT + 64, 8).ljust(64, b"\0")
    memory = header + inet("192.0.2.1", 9)
    found = judge(notice("sendmsg", 3, AT), X86_64, caller(memory)).finding
    assert found.target == "192.0.2.1:9"
    connected = struct.pack("=QI", 0, 0).ljust(64, b"\0")
    assert judge(notice("sendmsg", 3, AT), X86_64, caller(connected)).finding is None


def test_of_many_messages_any_may_carry_the_address():
    quiet = struct.pack("=QI", 0, 0).ljust(64, b"\0")
    loud = struct.pack("=QI", AT + 192, 8).ljust(64, b"\0")
    memory = quiet + quiet + loud + inet("192.0.2.1", 9)
    found = judge(notice("sendmmsg", 3, AT, 3), X86_64, caller(memory)).finding
    assert found.target == "192.0.2.1:9"
    assert judge(notice("sendmmsg", 3, AT, 2), X86_64, caller(memory)).finding is None


def test_a_raw_socket_and_a_forbidden_call_are_named_on_both_architectures():
    for arch in (X86_64, AARCH64):
        raw = judge(notice("socket", 2, 3 | 0o2000000, 1, arch=arch), arch, caller()).finding
        assert (raw.call, raw.target) == ("socket", "inet raw")
        ring = judge(notice("io_uring_setup", 1, 0, arch=arch), arch, caller()).finding
        assert ring.call == "io_uring_setup"


def test_a_notice_is_read_as_the_kernel_lays_it_out():
    raw = struct.pack("=QIIiIQ6Q", 7, 42, 0, 41, 0xC000003E, 0x400000, 1, 2, 3, 4, 5, 6)
    assert parse_notice(raw) == Notice(cookie=7, pid=42, number=41, arguments=(1, 2, 3, 4, 5, 6))


@given(
    call=st.sampled_from(["connect", "sendto", "sendmsg", "sendmmsg", "socket", "ptrace"]),
    memory=st.binary(max_size=256),
    arguments=st.lists(
        st.one_of(st.integers(AT, AT + 300), st.integers(0, 2**64 - 1)), min_size=6, max_size=6
    ),
)
def test_whatever_memory_says_there_is_a_verdict(call, memory, arguments):
    verdict = judge(notice(call, *arguments), X86_64, caller(memory))
    if verdict.finding is not None:
        assert verdict.finding.text().isprintable()
