"""The permit arithmetic, over every small fleet."""

from itertools import product

import pytest

from capsule.lane.permits import Availability, count_permits, explain_permits

SMALL = range(4)


def available(**changes):
    values = {
        "max_unavailable": 5,
        "outstanding": 0,
        "width": 5,
        "healthy": 50,
        "floor": 45,
        "domain_cap": None,
        "domain_down": 0,
    }
    return Availability(**(values | changes))


def every_small_fleet():
    for maximum, out, width, healthy, floor, cap, down in product(
        SMALL, SMALL, (1, 2, 3), SMALL, SMALL, (None, 0, 1, 2), SMALL
    ):
        yield available(
            max_unavailable=maximum,
            outstanding=out,
            width=width,
            healthy=healthy,
            floor=floor,
            domain_cap=cap,
            domain_down=down,
        )


def test_taking_what_is_permitted_never_breaks_a_bound():
    for now in every_small_fleet():
        count = count_permits(now, serving=True)
        assert count >= 0
        if count:
            assert now.outstanding + count <= min(now.max_unavailable, now.width)
            assert now.healthy - count >= now.floor
            assert now.domain_cap is None or now.domain_down + count <= now.domain_cap


def test_one_more_than_permitted_breaks_a_bound():
    for now in every_small_fleet():
        count = count_permits(now, serving=True) + 1
        assert (
            now.outstanding + count > min(now.max_unavailable, now.width)
            or now.healthy - count < now.floor
            or (now.domain_cap is not None and now.domain_down + count > now.domain_cap)
        )


def test_a_node_that_does_not_serve_takes_from_max_unavailable_only():
    for now in every_small_fleet():
        expected = max(min(now.max_unavailable, now.width) - now.outstanding, 0)
        assert count_permits(now, serving=False) == expected


@pytest.mark.parametrize("serving", [True, False])
def test_the_explanation_has_the_number_and_every_term_of_it(serving):
    for now in every_small_fleet():
        explained = explain_permits(now, serving=serving)
        assert explained.count == count_permits(now, serving=serving)
        assert explained.count == max(min(value for _, value in explained.terms), 0)


def test_the_arithmetic_reads_as_an_operator_would_write_it():
    now = available(outstanding=2, healthy=46, domain_cap=3, domain_down=3)
    assert explain_permits(now, serving=True).text == (
        "min(5 may be out - 2 out = 3, 46 proved healthy - floor 45 = 1, domain cap 3 - 3 down = 0)"
    )


def test_a_canary_goes_alone_whatever_the_fleet_could_miss():
    assert count_permits(available(width=1), serving=True) == 1
