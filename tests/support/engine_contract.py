"""What every container engine does alike: run by the tests for the fake, by the lab for podman."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from capsule_installer.engines.base import Engine
from capsule_manifest.errors import Failed
from support.engines import config_of, layout_files
from support.images import ImageFile, digest_of, layer_of

__all__ = ["EngineCase", "EngineContract"]

_PIN = "capsule.local/web:7-01234567"
_OTHER = "capsule.local/web:8-01234567"


@dataclass(frozen=True, kw_only=True)
class EngineCase:
    """An engine that is empty. `put` writes a layout where the engine can read it.

    `runs` runs a container of an image while it is open; `prune` collects garbage, all that is
    unused or only what has no name.
    """

    engine: Engine
    put: Callable[[Mapping[str, bytes]], str]
    runs: Callable[[str], AbstractContextManager[int]]
    prune: Callable[[bool], None]
    base: bytes = layer_of(base=b"base\n")

    def image(self, text: str = "one") -> ImageFile:
        """Return an image of two layers, the first of which all share."""
        layers = [self.base, layer_of(text=text.encode())]
        return ImageFile(layers=layers, compression="none")

    def loaded(self, text: str = "one") -> str:
        """Load an image and return its id."""
        image = self.image(text)
        self.engine.load(self.put(layout_files(image)), 60_000)
        return config_of(image)


class EngineContract:
    """The contract. A subclass gives the fixture `case`."""

    def test_an_image_is_held_once_it_was_loaded_under_the_id_of_its_configuration(
        self, case: EngineCase
    ) -> None:
        image = config_of(case.image())
        assert not case.engine.holds(image)
        assert case.loaded() == image
        assert case.engine.holds(image)

    def test_loading_again_changes_nothing(self, case: EngineCase) -> None:
        first = case.loaded()
        case.engine.pin(first, _PIN)
        assert case.loaded() == first
        assert case.engine.pins() == {_PIN: first}

    def test_a_folder_without_a_layout_is_refused(self, case: EngineCase) -> None:
        with pytest.raises(Failed) as failed:
            case.engine.load(case.put({"text": b"no layout"}), 60_000)
        assert failed.value.error_id == "image-load-failed"

    def test_a_layer_that_is_not_what_its_name_says_is_refused(self, case: EngineCase) -> None:
        image = case.image()
        files = layout_files(image)
        path = f"blobs/sha256/{_layer_hex(image)}"
        files[path] = files[path].replace(b"one", b"two")
        with pytest.raises(Failed) as failed:
            case.engine.load(case.put(files), 60_000)
        assert failed.value.error_id == "image-load-failed"
        assert not case.engine.holds(config_of(image))

    def test_a_pin_is_a_name_that_keeps_an_image_from_a_collector_of_nameless_ones(
        self, case: EngineCase
    ) -> None:
        image = case.loaded()
        case.engine.pin(image, _PIN)
        case.prune(False)
        assert case.engine.holds(image)
        assert case.engine.pins() == {_PIN: image}

    def test_a_pin_does_not_keep_an_image_from_a_collector_of_unused_ones(
        self, case: EngineCase
    ) -> None:
        image = case.loaded()
        case.engine.pin(image, _PIN)
        case.prune(True)
        assert not case.engine.holds(image)
        assert case.engine.pins() == {}

    def test_a_pin_that_is_given_again_leads_to_the_newer_image(self, case: EngineCase) -> None:
        first, second = case.loaded("one"), case.loaded("two")
        case.engine.pin(first, _PIN)
        case.engine.pin(second, _PIN)
        assert case.engine.pins() == {_PIN: second}

    def test_an_image_that_is_not_held_can_not_be_pinned(self, case: EngineCase) -> None:
        with pytest.raises(Failed) as failed:
            case.engine.pin(config_of(case.image()), _PIN)
        assert failed.value.error_id == "engine-failed"

    def test_the_last_pin_takes_the_image_with_it(self, case: EngineCase) -> None:
        image = case.loaded()
        case.engine.pin(image, _PIN)
        case.engine.pin(image, _OTHER)
        case.engine.unpin(_PIN)
        assert case.engine.holds(image)
        case.engine.unpin(_OTHER)
        assert not case.engine.holds(image)

    def test_a_pin_that_is_not_there_is_taken_away_without_an_error(self, case: EngineCase) -> None:
        case.engine.unpin(_PIN)
        assert case.engine.pins() == {}

    def test_an_image_is_discarded_with_all_its_names(self, case: EngineCase) -> None:
        image = case.loaded()
        case.engine.pin(image, _PIN)
        case.engine.pin(image, _OTHER)
        case.engine.discard(image)
        assert not case.engine.holds(image)
        assert case.engine.pins() == {}
        case.engine.discard(image)

    def test_an_image_that_a_container_uses_is_not_discarded(self, case: EngineCase) -> None:
        image = case.loaded()
        with case.runs(image):
            with pytest.raises(Failed) as failed:
                case.engine.discard(image)
            assert failed.value.error_id == "engine-failed"
            assert case.engine.holds(image)

    def test_images_that_share_a_layer_go_one_by_one(self, case: EngineCase) -> None:
        first, second = case.loaded("one"), case.loaded("two")
        case.engine.pin(first, _PIN)
        case.engine.pin(second, _OTHER)
        case.engine.unpin(_PIN)
        assert (case.engine.holds(first), case.engine.holds(second)) == (False, True)
        with case.runs(second) as pid:
            assert pid > 0

    def test_what_runs_is_told_with_its_image_and_its_process(self, case: EngineCase) -> None:
        image = case.loaded()
        assert case.engine.containers() == ()
        with case.runs(image) as pid:
            (container,) = case.engine.containers()
            assert (container.image, container.pid) == (image, pid)
        assert case.engine.containers() == ()

    def test_an_image_that_a_container_uses_loses_its_pin_and_stays(self, case: EngineCase) -> None:
        image = case.loaded()
        case.engine.pin(image, _PIN)
        with case.runs(image):
            case.engine.unpin(_PIN)
            assert case.engine.holds(image)
            assert case.engine.pins() == {}


def _layer_hex(image: ImageFile) -> str:
    return digest_of(image.layers[-1]).removeprefix("sha256:")
