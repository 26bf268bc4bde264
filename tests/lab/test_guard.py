"""The network guard on a real host: a few of the cases of `./dev lab guard`, which has them all."""

import pytest

from support.lab.guard_run import ready_host, run_cases

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

CASES = (
    "curl by address",
    "curl by name",
    "systemd-run",
    "static binary",
    "inherited descriptor",
    "L2: curl by address",
    "service after release-network",
    "guard that can't be armed",
    "L0 without a waiver",
)


def test_no_way_leads_out_of_the_guard_and_each_leads_out_without_it(host):
    ready_host(host)
    found = {row["case"]: row for row in run_cases(host, *CASES)}
    assert set(found) == set(CASES)
    for row in found.values():
        assert row["got"] == row["expected"], row["case"]
