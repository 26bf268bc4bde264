"""How often a controller waits for a host while it stages, on a host that is a folder."""

import pytest

from capsule.transport.local import LocalTransport
from support.round_trips import SIZES, turns_of


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_round_trips_of_a_staging_do_not_grow_with_the_number_of_files(tmp_path):
    turns = {}
    for files in SIZES:
        folder = tmp_path / str(files)
        folder.mkdir()
        turns[files] = turns_of(folder, files, LocalTransport)
    assert [turn for turn in turns[100] if turn != "wait"] == ["open receive"]
    assert turns[100] == turns[1_000] == turns[18_000], turns
