"""Updates of trust under a wrong clock: refused with both times, and nothing else is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from capsule_manifest.errors import ExitCode
from support.trust_media import NOW, policy, refused

DAY = timedelta(days=1)
TIME = ExitCode.TIME


@pytest.mark.parametrize(
    ("now", "error_id", "limit"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), "trust-clock-behind", "2026-11-28 12:00:00 UTC"),
        (datetime(2099, 1, 1, tzinfo=UTC), "trust-expired", "2026-12-29 12:00:00 UTC"),
        (NOW + 31 * DAY, "trust-expired", "2026-12-29 12:00:00 UTC"),
    ],
)
def test_a_wrong_clock_or_a_frozen_medium_is_refused_with_both_times(world, now, error_id, limit):
    world.write(policy(2))
    with refused(error_id, TIME) as caught:
        world.update(now)
    assert limit in str(caught.value)
    assert now.strftime("%Y-%m-%d %H:%M:%S UTC") in str(caught.value)


def test_a_clock_that_went_back_since_the_last_update_is_refused(world):
    world.write(policy(2))
    world.update(NOW + DAY)
    with refused("trust-clock-behind", TIME) as caught:
        world.update(NOW)
    assert "2026-11-30 12:00:00 UTC" in str(caught.value)
    assert "2026-11-29 12:00:00 UTC" in str(caught.value)


def test_a_clock_behind_the_policy_that_is_brought_is_refused_and_not_taken_for_fresh(world):
    """It is later than all that was accepted, but not right: the owners signed in its future."""
    issued = int((NOW + 9 * DAY).timestamp())
    world.write(replace(policy(2), issued_s=issued), now=NOW + 9 * DAY)
    with refused("trust-clock-behind", TIME) as caught:
        world.update(NOW + DAY)
    assert "2026-12-08 12:00:00 UTC" in str(caught.value)
    assert "2026-11-30 12:00:00 UTC" in str(caught.value)
    assert world.update(NOW + 9 * DAY).policy.issued_s == issued


def test_a_policy_past_its_own_age_is_refused_as_expired(world):
    world.write(replace(policy(2), max_age_s=3600))
    with refused("trust-expired", TIME):
        world.update()
