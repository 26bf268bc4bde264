"""The seccomp program, run call by call in an interpreter of classic BPF."""

import itertools

import pytest

from capsule_installer.guard.bpf import ALLOW, ENOSYS, EPERM, ERRNO, KILL, NOTIFY, make_program
from capsule_installer.guard.syscalls import AARCH64, FORBIDDEN, NEW_NAMESPACES, X86_64
from support.classic_bpf import Call, read_program

ARCHES = [X86_64, AARCH64]
LEVELS = [pytest.param(False, id="L2"), pytest.param(True, id="L3")]
NUMBERS = range(1024)
CONDITIONAL = {"clone", "clone3", "socket", "connect", "sendto", "sendmsg", "sendmmsg"}
UNIX, INET, INET6, NETLINK, PACKET, VSOCK = 1, 2, 10, 16, 17, 40
STREAM, DATAGRAM, RAW, OLD_PACKET = 1, 2, 3, 10


def denied(attributed):
    return NOTIFY if attributed else ERRNO | EPERM


@pytest.fixture(params=ARCHES, ids=lambda arch: arch.machine)
def arch(request):
    return request.param


@pytest.fixture(params=LEVELS)
def attributed(request):
    return request.param


@pytest.fixture
def run(arch, attributed):
    program = read_program(make_program(arch, attributed=attributed))

    def one(name, *arguments):
        padded = (*arguments, *[0] * (6 - len(arguments)))
        return program.run(Call(arch.audit, arch.numbers[name], padded))

    return one


def test_every_call_that_is_not_named_is_left_to_the_namespace(arch, attributed):
    program = read_program(make_program(arch, attributed=attributed))
    named = {arch.numbers[name] for name in (*FORBIDDEN, *CONDITIONAL)}
    for number in NUMBERS:
        if number not in named:
            assert program.run(Call(arch.audit, number)) == ALLOW, number


def test_forbidden_calls_are_denied_whatever_their_arguments(run, attributed):
    for name, argument in itertools.product(FORBIDDEN, (0, 1, 2**32, 2**64 - 1)):
        assert run(name, *[argument] * 6) == denied(attributed), name


def test_calls_of_every_other_architecture_end_the_process(arch, attributed):
    program = read_program(make_program(arch, attributed=attributed))
    others = {0x4000_0003, 0x4000_0028, 0xC000_003E, 0xC000_00B7, 0} - {arch.audit}
    for audit, number in itertools.product(others, NUMBERS):
        assert program.run(Call(audit, number)) == KILL


@pytest.mark.parametrize("attributed", LEVELS)
def test_x32_calls_end_the_process_on_x86_64(attributed):
    program = read_program(make_program(X86_64, attributed=attributed))
    for number in (0x4000_0000, 0x4000_0000 + 41, 0x7FFF_FFFF, 0xFFFF_FFFF):
        assert program.run(Call(X86_64.audit, number)) == KILL


def test_sockets_of_every_family_and_type(run, attributed):
    for family, kind, flags in itertools.product(range(64), range(16), (0, 0o4000, 0o2000000)):
        if family in {UNIX, NETLINK} or (family in {INET, INET6} and kind not in {RAW, OLD_PACKET}):
            expected = ALLOW
        else:
            expected = denied(attributed)
        assert run("socket", family, kind | flags, 0) == expected, (family, kind)


def test_the_high_half_of_a_family_hides_nothing(run, attributed):
    # The kernel takes an int: bits above it don't make vsock another family.
    assert run("socket", 2**32 | VSOCK, STREAM) == denied(attributed)
    assert run("socket", INET, 2**32 | RAW) == denied(attributed)


def test_a_child_is_made_and_a_namespace_is_not(run, attributed):
    for bit in range(32):
        expected = denied(attributed) if 1 << bit & NEW_NAMESPACES else ALLOW
        assert run("clone", 1 << bit) == expected, hex(1 << bit)
    assert run("clone", 0x0120_0011) == ALLOW  # what the C library's fork asks for
    assert run("clone3") == ERRNO | ENOSYS


def test_only_a_call_that_names_a_destination_is_asked_about(run, attributed):
    asked = NOTIFY if attributed else ALLOW
    assert run("connect") == asked
    assert run("sendmsg") == run("sendmmsg") == asked
    assert run("sendto", 3, 0x1000, 5, 0, 0, 0) == ALLOW
    for pointer in (0x1000, 2**32, 0x7FFF_0000_0000):
        assert run("sendto", 3, 0x1000, 5, 0, pointer, 16) == asked


def test_numbers_of_an_architecture_are_of_one_call_each(arch):
    assert len(set(arch.numbers.values())) == len(arch.numbers)
    assert set(X86_64.numbers) == set(AARCH64.numbers) == {*FORBIDDEN, *CONDITIONAL}
