"""Which levels a host offers, from what its kernel says."""

from dataclasses import replace

import pytest

from capsule_installer.guard.levels import (
    NAMESPACES,
    REFUSED_MS,
    GuardFacts,
    missing_for,
    offered_levels,
    parse_refusal,
)

ABLE = GuardFacts(
    is_folder=False,
    has_counters=True,
    user=0,
    capabilities=(1 << 41) - 1,
    namespaces=NAMESPACES | {"user", "time"},
    kernel=(6, 1),
    machine="x86_64",
    seccomp_actions=frozenset({"kill_process", "errno", "user_notif", "allow"}),
)


def test_a_host_that_can_do_all_offers_all():
    assert offered_levels(ABLE) == ("L0", "L1", "L2", "L3")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"user": 1000}, "root"),
        ({"capabilities": ABLE.capabilities & ~(1 << 21)}, "CAP_SYS_ADMIN"),
        ({"capabilities": ABLE.capabilities & ~(1 << 12)}, "CAP_NET_ADMIN"),
        ({"namespaces": NAMESPACES - {"net"}}, "the net namespace"),
        ({"kernel": (5, 11)}, "Linux 5.12"),
        ({"machine": "riscv64"}, "an x86-64 or aarch64 processor"),
        ({"seccomp_actions": frozenset({"allow", "errno"})}, "seccomp's kill_process"),
    ],
)
def test_one_thing_missing_leaves_no_denial_and_is_named(change, missing):
    facts = replace(ABLE, **change)
    assert offered_levels(facts) == ("L0", "L1")
    assert missing in missing_for("L2", facts)


def test_a_folder_host_offers_nothing_because_its_network_is_of_others_too():
    facts = replace(ABLE, is_folder=True)
    assert offered_levels(facts) == ("L0",)
    assert missing_for("L1", facts) == ("a host that is not a folder",)


def test_a_host_that_counts_nothing_has_no_level_that_counts():
    facts = replace(ABLE, has_counters=False)
    assert offered_levels(facts) == ("L0",)


def test_without_user_notification_a_host_still_denies():
    facts = replace(ABLE, seccomp_actions=ABLE.seccomp_actions - {"user_notif"})
    assert offered_levels(facts) == ("L0", "L1", "L2")
    assert missing_for("L3", facts) == ("seccomp's user_notif",)


def test_the_oldest_kernel_is_enough():
    assert offered_levels(replace(ABLE, kernel=(5, 12), machine="aarch64")) == (
        "L0",
        "L1",
        "L2",
        "L3",
    )


def test_a_level_that_could_not_be_armed_is_not_offered_nor_any_above():
    assert offered_levels(ABLE, refused="L3") == ("L0", "L1", "L2")
    assert offered_levels(ABLE, refused="L2") == ("L0", "L1")


def test_a_refusal_is_forgotten_after_a_while():
    assert parse_refusal(b"L3 1000\n", 1_000) == "L3"
    assert parse_refusal(b"L3 1000\n", 999 + REFUSED_MS) == "L3"
    assert parse_refusal(b"L3 1000\n", 1_000 + REFUSED_MS) is None
    assert parse_refusal(b"L3 1000\n", 999) is None


@pytest.mark.parametrize("raw", [b"", b"L3", b"L0 1", b"L3 -1", b"L3 x", b"L3 1 2", b"\xff\xb2 1"])
def test_what_is_no_refusal_refuses_nothing(raw):
    assert parse_refusal(raw, 1) is None
