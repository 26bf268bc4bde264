"""The permit arithmetic, enumerated over a small space."""

from itertools import product

from capsule.lane.permits import Availability, count_permits, explain_permits


def space():
    for out, width, most, healthy, floor, cap, down in product(
        range(3), range(1, 3), range(1, 4), range(4), range(4), (None, 1, 2), range(3)
    ):
        yield Availability(
            max_unavailable=most,
            outstanding=out,
            width=width,
            healthy=healthy,
            floor=floor,
            domain_cap=cap,
            domain_down=down,
        )


def test_a_permit_for_a_serving_node_leaves_the_floor_standing():
    for now in space():
        permits = count_permits(now, serving=True)
        assert permits == 0 or now.healthy - permits >= now.floor


def test_a_permit_never_exceeds_what_may_be_out():
    for now in space():
        for serving in (True, False):
            permits = count_permits(now, serving=serving)
            most = min(now.width, now.max_unavailable)
            assert permits == 0 or now.outstanding + permits <= most


def test_a_permit_for_a_serving_node_stays_within_its_domain():
    for now in space():
        permits = count_permits(now, serving=True)
        assert permits == 0 or now.domain_cap is None or now.domain_down + permits <= now.domain_cap


def test_a_node_that_does_not_serve_takes_from_the_width_only():
    for now in space():
        allowed = max(0, min(now.width, now.max_unavailable) - now.outstanding)
        assert count_permits(now, serving=False) == allowed


def test_the_explanation_shows_the_number_it_explains():
    for now in space():
        for serving in (True, False):
            permits = explain_permits(now, serving=serving)
            assert permits.count == max(0, min(value for _, value in permits.terms))
            assert permits.count == count_permits(now, serving=serving)


def test_the_arithmetic_is_readable():
    now = Availability(
        max_unavailable=4, outstanding=1, width=2, healthy=46, floor=42, domain_cap=3, domain_down=1
    )
    assert explain_permits(now, serving=True).text == (
        "min(2 may be out - 1 out = 1, 46 proved healthy - floor 42 = 4, domain cap 3 - 1 down = 2)"
    )
