"""The pipes of a child process."""

import time

from capsule.transport.base import Limits
from capsule.transport.local import LocalTransport


def test_a_good_part_of_a_frame_fits_on_the_way_before_the_program_reads(tmp_path):
    limits = Limits(total_s=10.0, idle_s=2.0)
    with LocalTransport(tmp_path).open(["sleep", "8"], limits=limits) as channel:
        began = time.monotonic()
        assert channel.write(bytes(1000 * 1000))
        assert time.monotonic() - began < 2.0
