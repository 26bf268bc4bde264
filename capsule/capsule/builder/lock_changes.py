"""What is different between two locks, pin by pin, in words that a person can act on. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from capsule.builder.lockfile import LockFile, WheelSet

__all__ = ["Change", "lock_changes", "without_pins_of"]

_NONE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One pin that is or would be another. `old` and `new` say what is pinned, for people."""

    where: str
    old: str
    new: str


def lock_changes(old: LockFile | None, new: LockFile) -> tuple[Change, ...]:
    """Return all changes of pins, in order of their places; none if only the time differs."""
    before, after = _pins(old) if old is not None else {}, _pins(new)
    return tuple(
        Change(where=where, old=before.get(where, _NONE), new=after.get(where, _NONE))
        for where in sorted(before.keys() | after.keys())
        if before.get(where) != after.get(where)
    )


def without_pins_of(lock: LockFile, names: Iterable[str]) -> tuple[LockFile, frozenset[str]]:
    """Return the lock without what it pins for these components and distributions.

    The second value has the names that the lock knows nothing of.
    """
    wanted = frozenset(names)
    known: set[str] = set()

    def kept(sets: Mapping[tuple[str, str], WheelSet]) -> dict[tuple[str, str], WheelSet]:
        found = {}
        for (component, platform), pins in sets.items():
            known.update({component, *(pin.name for pin in pins.wheels)} & wanted)
            if component not in wanted:
                wheels = tuple(pin for pin in pins.wheels if pin.name not in wanted)
                found[component, platform] = replace(pins, wheels=wheels)
        return found

    wheels = kept(lock.wheels)
    runtime = kept({("runtime", platform): pins for platform, pins in lock.runtime.items()})
    for names_of in (lock.images, lock.closures):
        known.update(component for component, _ in names_of if component in wanted)
    known.update((lock.tools.keys() | lock.sources.keys()) & wanted)
    return (
        LockFile(
            locked_at=lock.locked_at,
            locked_by=lock.locked_by,
            wheels=wheels,
            runtime={platform: pins for (_, platform), pins in runtime.items()},
            tools={name: pin for name, pin in lock.tools.items() if name not in wanted},
            sources={name: pin for name, pin in lock.sources.items() if name not in wanted},
            images={keys: pin for keys, pin in lock.images.items() if keys[0] not in wanted},
            closures={keys: pin for keys, pin in lock.closures.items() if keys[0] not in wanted},
        ),
        wanted - known,
    )


def _pins(lock: LockFile) -> dict[str, str]:
    """Return what is pinned by where: short, but different whenever content is."""
    found: dict[str, str] = {}
    sets = {f"wheels.{name}.{platform}": pins for (name, platform), pins in lock.wheels.items()}
    sets |= {f"runtime.{platform}": pins for platform, pins in lock.runtime.items()}
    for where, pins in sets.items():
        found[f"{where}: input"] = f"{pins.target}, sha256:{pins.input_sha256}"
        for wheel in pins.wheels:
            found[f"{where}: {wheel.name}"] = f"{wheel.file}, sha256:{wheel.sha256}"
    for name, tool in lock.tools.items():
        found[f"tools.{name}"] = f"sha256:{tool.sha256}"
    for name, source in lock.sources.items():
        found[f"sources.{name}"] = f"commit {source.commit}, tree {source.tree}"
    for (name, platform), image in lock.images.items():
        found[f"images.{name}.{platform}"] = f"sha256:{image.manifest_sha256}"
        found[f"images.{name}.{platform}: input"] = f"sha256:{image.input_sha256}"
    for (name, platform), closure in lock.closures.items():
        found[f"nix.{name}.{platform}: input"] = f"sha256:{closure.input_sha256}"
        found[f"nix.{name}.{platform}: root"] = f"{closure.root}, {', '.join(closure.bin)}"
        for path in closure.paths:
            found[f"nix.{name}.{platform}: {path.name}"] = f"sha256:{path.nar_sha256}"
    return found
