"""Ops of releases whose units run images: an engine that loses some never leaves a host down."""

import errno

import pytest

from capsule_installer.care.collect import collect
from capsule_installer.engines.images import EngineImages
from capsule_installer.op.journal import read_journal
from capsule_installer.op.op_folder import OpFile, Result
from capsule_manifest.errors import Failed
from support.engines import FakeEngine, config_of
from support.images import ImageFile, layer_of
from support.install_world import World
from support.ops import carry_out
from support.staged_host import Build

FIRST, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32


def image(text):
    return ImageFile(layers=[layer_of(text=text.encode())], compression="none")


ONE, TWO = image("one"), image("two")


class Losing(FakeEngine):
    """An engine that loses everything after so many looks at what it holds."""

    looks_left = -1

    def holds(self, image):
        if self.looks_left == 0:
            self.store.clear()
        self.looks_left -= 1
        return super().holds(image)


@pytest.fixture
def world():
    made = World.fresh()
    engine = Losing(disk=made.host.disk)
    made.engine = engine
    effects = made.effects()
    made.images = EngineImages(
        disk=effects.disk, layout=effects.layout, clock=effects.clock, engine=engine
    )
    return made


def build(counter, image, **how):
    return Build(counter=counter, argv=f"run {config_of(image)}", images={"site": image}, **how)


def install(world, counter, image, op_id, *, broken=False):
    marker = world.stage(build(counter, image), broken=broken)
    return marker, carry_out(world, marker, op_id)


def pins(world):
    return {name.rpartition(":")[2]: found for name, found in world.engine.pins().items()}


def test_an_op_keeps_the_new_and_the_old_release_in_the_engine(world):
    first, result = install(world, 1, ONE, FIRST)
    assert result is Result.COMMITTED
    second, result = install(world, 2, TWO, SECOND)
    assert result is Result.COMMITTED
    assert pins(world) == {first.generation: config_of(ONE), second.generation: config_of(TWO)}


@pytest.mark.parametrize("looks", range(4))
def test_whenever_the_engine_loses_all_images_one_release_serves(world, looks):
    first, _ = install(world, 1, ONE, FIRST)
    world.engine.looks_left = looks
    second, result = install(world, 2, TWO, SECOND)
    if result is Result.REFUSED:
        # Lost between loading and the look at what was loaded: nothing was stopped.
        assert not world.host.op(SECOND).has(OpFile.INTENT)
        assert set(world.machine.running.values()) == {first.generation}
        result = carry_out(world, second, THIRD)
    assert result is Result.COMMITTED
    assert world.engine.holds(config_of(TWO))
    assert world.is_whole(second.generation, strict=True)


def test_an_image_that_is_not_taken_again_refuses_the_op_and_stops_nothing(world):
    first, _ = install(world, 1, ONE, FIRST)
    second = world.stage(build(2, TWO))
    world.engine.refuses = "no space left on device"
    starts = world.machine.starts
    assert carry_out(world, second, SECOND) is Result.REFUSED
    assert "no space left on device" in world.host.op(SECOND).reason()
    assert not world.host.op(SECOND).has(OpFile.INTENT)
    assert (world.machine.starts, set(world.machine.running.values())) == (
        starts, {first.generation},
    )  # fmt: skip


def test_the_way_back_is_needed_while_the_old_release_runs_and_only_then(world):
    first, _ = install(world, 1, ONE, FIRST)
    second = world.stage(Build(counter=2))
    world.engine.store.clear()
    world.engine.refuses = "read-only file system"
    assert carry_out(world, second, SECOND) is Result.REFUSED
    assert set(world.machine.running.values()) == {first.generation}
    # It is down, and nothing can bring it back: the new release may.
    world.machine.running.clear()
    assert carry_out(world, second, THIRD) is Result.COMMITTED
    assert set(world.machine.running.values()) == {second.generation}


def test_an_image_that_is_gone_between_stop_and_start_and_is_not_taken_again_restores(world):
    first, _ = install(world, 1, ONE, FIRST)
    second = world.stage(build(2, TWO))
    holds = world.engine.holds

    def lose(asked):
        if asked == config_of(TWO) and world.host.op(SECOND).has(OpFile.STOPPING):
            world.engine.store.pop(asked, None)
            world.engine.refuses = "read-only file system"
        return holds(asked)

    world.engine.holds = lose
    assert carry_out(world, second, SECOND) is Result.RESTORED
    assert "read-only file system" in world.host.op(SECOND).reason()
    assert set(world.machine.running.values()) == {first.generation}


def test_a_restore_loads_again_what_the_engine_lost_of_the_old_release(world):
    first, _ = install(world, 1, ONE, FIRST)
    second = world.stage(build(2, TWO), broken=True)
    holds = world.engine.holds

    def lose(asked):
        # Once the old release is stopped, nothing runs its image.
        if asked == config_of(TWO) and world.host.op(SECOND).has(OpFile.STOPPING):
            world.engine.store.pop(config_of(ONE), None)
        return holds(asked)

    world.engine.holds = lose
    assert carry_out(world, second, SECOND) is Result.RESTORED
    assert config_of(ONE) in world.engine.store
    assert set(world.machine.running.values()) == {first.generation}


@pytest.mark.parametrize("how", ["refused", "no answer", "disk full"])
def test_a_restore_starts_the_old_units_also_when_an_image_is_not_taken_again(world, how):
    first, _ = install(world, 1, ONE, FIRST)
    second = world.stage(build(2, TWO), broken=True)
    holds = world.engine.holds

    def lose(asked):
        if asked == config_of(ONE) and world.host.op(SECOND).has(OpFile.STOPPING):
            if how == "no answer":
                raise Failed("engine-failed", "the engine does not answer")
            if how == "disk full":
                raise OSError(errno.ENOSPC, "no space left on device")
            world.engine.store.pop(config_of(ONE), None)
            world.engine.refuses = "read-only file system"
        return holds(asked)

    world.engine.holds = lose
    assert carry_out(world, second, SECOND) is Result.RESTORED
    assert set(world.machine.running.values()) == {first.generation}
    states = {line["name"]: line["state"] for line in read_journal(world.host.op(SECOND))}
    assert (states["restore-images"], states["restore-start"]) == ("failed", "done")


def test_an_op_lists_the_images_of_the_old_release_for_whoever_restores_it(world):
    first, _ = install(world, 1, ONE, FIRST)
    install(world, 2, TWO, SECOND)
    (listed,) = world.host.op(SECOND).images()
    layout = f"{world.host.layout.generation(first.generation)}/site"
    assert (listed.id, listed.layout) == (config_of(ONE), layout)
    assert world.host.op(FIRST).images() == ()


def test_a_release_without_images_has_no_list_of_them(world):
    plain = world.stage(Build(counter=1))
    assert carry_out(world, plain, FIRST) is Result.COMMITTED
    install(world, 2, TWO, SECOND)
    assert not world.host.op(SECOND).has(OpFile.IMAGES_OLD)


def test_collecting_drops_what_the_engine_keeps_for_generations_that_are_gone(world):
    markers = [
        install(world, counter, image(str(counter)), f"{counter}" * 32)[0]
        for counter in range(1, 5)
    ]
    collection = collect(world.effects(), dry_run=True)
    assert len(pins(world)) == 4
    assert collection.generations
    collect(world.effects(), dry_run=False)
    kept = {marker.generation for marker in markers} - set(collection.generations)
    assert set(pins(world)) == kept
