"""Wheels are read together on several threads, and what is told of them is what one would tell."""

from dataclasses import replace

import pytest

from capsule.builder.spool import Spool
from capsule.builder.wheel_file import read_wheel, read_wheels
from capsule_manifest.errors import Refused
from support.wheels import WheelFile, pin_of

MIB = 1024 * 1024
FILES = {
    **{f"demo/small/{index:03}.py": b"x = %d\n" % index * index for index in range(700)},
    "demo/large.bin": bytes(range(256)) * 4 * 1024 * 5 + b"an end",
    "demo/exactly.bin": b"\1" * MIB,
}


def wheels(folder, count):
    found = []
    for index in range(count):
        made = WheelFile(name=f"demo{index}", files={**FILES, "demo/which.py": b"%d" % index})
        path = made.write(folder)
        found.append((path, pin_of(path, name=made.name, version=made.version)))
    return found


def test_wheels_read_together_are_what_each_is_alone(tmp_path):
    found = wheels(tmp_path, 3)
    together = read_wheels(found, None, Spool.on_disk_of(tmp_path))
    for wheel, (path, pin) in zip(together, found, strict=True):
        alone = read_wheel(path, pin)
        assert wheel.pin == pin
        assert dict(wheel.examined) == dict(alone.examined)
        assert wheel.kept.keys() == wheel.examined.keys()
        assert not alone.kept
        for name, content in FILES.items():
            with wheel.open(name) as kept, alone.open(name) as member:
                assert kept.read() == member.read() == content


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_one_bad_wheel_among_others_is_named(tmp_path, bad):
    found = wheels(tmp_path, 3)
    made = WheelFile(name=f"demo{bad}", files=FILES)
    record = made.record_of({**made.contents(), "demo/large.bin": FILES["demo/exactly.bin"]})
    path = replace(made, record=record).write(tmp_path)
    found[bad] = (path, pin_of(path, name=made.name, version=made.version))
    with pytest.raises(Refused) as caught:
        read_wheels(found)
    assert caught.value.error_id == "wheel-record-mismatch"
    assert caught.value.where == path.name
