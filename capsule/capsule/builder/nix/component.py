"""The components of a release that come from flakes: pinned for each platform, built from pins."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from capsule.builder.config import NixOrigin, ReleaseSource, ToolSource
from capsule.builder.content_cache import ContentCache
from capsule.builder.git_source import find_work_tree
from capsule.builder.lockfile import NixPin
from capsule.builder.model import ComponentInput, External, InputEntry
from capsule.builder.nix.caches import FolderCache
from capsule.builder.nix.closure import check_closed, obtain_closure, read_closure
from capsule.builder.nix.program import NixAsk
from capsule.builder.nix.tree import closure_entries
from capsule_manifest.errors import Refused

__all__ = ["fetch_closures", "nix_inputs", "pin_closures"]

Pins = Mapping[tuple[str, str], NixPin]


def pin_closures(
    release: ReleaseSource, cache: ContentCache, known: Pins, *, report: Callable[[str], None]
) -> dict[tuple[str, str], NixPin]:
    """Return the pin of each component of a flake on each platform.

    `known` is kept where it answers. A flake beside the release is evaluated anew wherever Nix is,
    at the commit of its work tree; what changes no content changes no pin.

    Raises:
        Refused: `nix-*`, `nar-malformed`, `narinfo-malformed`, `path-invalid`, `link-escapes`,
            `source-not-git`.
        Failed: `nix-failed`, `nix-path-unavailable`, `cache-failed`.
    """
    pins = {}
    for component, platform, origin in _asked(release):
        report(f"{component.name} for {platform}")
        pin = known.get((component.name, platform))
        if pin is not None and pin.input_sha256 != _question(component, origin):
            pin = None
        if pin is None or (_is_local(origin) and cache.nix.builder.is_present()):
            built = _built(release, component, platform, origin, cache)
            pin = pin if pin is not None and pin.has_content_of(built) else built
        # Laid out once now: a link that leads out is found by who can still change the package.
        _laid_out(pin, origin, cache, _where(component, platform))
        pins[component.name, platform] = pin
    return pins


def closure_pins(release: ReleaseSource, pins: Pins) -> Iterator[tuple[str, str, NixPin | None]]:
    """Yield each component of a flake, its platform, and the pin that answers what it asks now."""
    for component, platform, origin in _asked(release):
        pin = pins.get((component.name, platform))
        is_answer = pin is not None and pin.input_sha256 == _question(component, origin)
        yield component.name, platform, pin if is_answer else None


def fetch_closures(
    release: ReleaseSource, cache: ContentCache, pins: Pins, *, report: Callable[[str], None]
) -> int:
    """Fetch all closures that are pinned into the cache; return how many.

    Raises:
        Refused: `lock-stale`, `nix-closure-open`, `nix-nar-mismatch`, `nix-signature-*`,
            `narinfo-malformed`.
        Failed: `nix-path-unavailable`, `cache-failed`.
    """
    count = 0
    for component, platform, origin in _asked(release):
        report(f"{component.name} for {platform}")
        pin = _pinned(component, platform, origin, pins)
        obtain_closure(pin.paths, cache.nix.caches, origin.keys, cache)
        count += 1
    return count


def nix_inputs(
    release: ReleaseSource, cache: ContentCache, pins: Pins, *, report: Callable[[str], None]
) -> Iterator[ComponentInput]:
    """Yield the components of flakes; platforms with the same closure share one. Needs no Nix.

    Raises:
        Refused: `lock-stale`, `nix-*`, `nar-malformed`, `path-invalid`, `link-escapes`.
        Failed: `nix-path-unavailable`, `cache-failed`.
    """
    groups: dict[tuple[str, tuple[object, ...]], list[str]] = {}
    asked = {}
    for component, platform, origin in _asked(release):
        pin = _pinned(component, platform, origin, pins)
        key = (component.name, pin.content)
        groups.setdefault(key, []).append(platform)
        asked[key] = (component, origin, pin)
    for key, platforms in groups.items():
        component, origin, pin = asked[key]
        report(component.name)
        entries, external = _laid_out(pin, origin, cache, _where(component, platforms[0]))
        is_for_all = not component.platforms and len(platforms) == len(release.platforms)
        yield ComponentInput(
            name=component.name,
            kind=component.kind.value,
            platforms=() if is_for_all else tuple(sorted(platforms)),
            entries=entries,
            external=external,
        )


def _asked(release: ReleaseSource) -> Iterator[tuple[ToolSource, str, NixOrigin]]:
    for component in release.components:
        if isinstance(component, ToolSource) and isinstance(component.origin, NixOrigin):
            for platform in release.platforms_of(component):
                yield component, platform, component.origin


def _built(
    release: ReleaseSource,
    component: ToolSource,
    platform: str,
    origin: NixOrigin,
    cache: ContentCache,
) -> NixPin:
    where = _where(component, platform)
    if not cache.nix.builder.is_present():
        raise Refused(
            "nix-missing", "a component has no pin that answers, and no Nix is here to make one",
            expected="Nix 2.8 or newer, or a lock with this component", got="neither", where=where,
        )  # fmt: skip
    ask = NixAsk(
        flake=_address(release.folder / origin.flake) if _is_local(origin) else origin.flake,
        component=origin.component or component.name,
        system=f"{release.platforms[platform].machine}-linux",
        where=where,
    )
    with cache.scratch() as scratch:
        folder = Path(scratch).resolve() / "closure"
        built = cache.nix.builder.build(ask, folder)
        if built.kind != component.kind.value:
            raise Refused(
                "nix-component-invalid", "the flake has the component as another kind",
                expected=component.kind.value, got=built.kind, where=where,
            )  # fmt: skip
        return NixPin(
            input_sha256=_question(component, origin),
            revision=built.revision,
            root=built.root,
            bin=built.bin,
            paths=read_closure(built.root, FolderCache(folder), origin.keys, cache),
        )


def _laid_out(
    pin: NixPin, origin: NixOrigin, cache: ContentCache, where: str
) -> tuple[tuple[InputEntry, ...], tuple[External, ...]]:
    check_closed(pin.root, pin.paths, where=where)
    archives = obtain_closure(pin.paths, cache.nix.caches, origin.keys, cache)
    return closure_entries(pin, archives, where=where)


def _is_local(origin: NixOrigin) -> bool:
    return ":" not in origin.flake


def _address(folder: Path) -> str:
    """Return the address of a flake in a folder at its commit: changes since are no part of it."""
    tree = find_work_tree(folder)
    below = f"&dir={quote(tree.prefix)}" if tree.prefix else ""
    return f"git+file://{quote(str(tree.top))}?rev={tree.source.commit}{below}"


def _question(component: ToolSource, origin: NixOrigin) -> str:
    # Of the path as it is written: two checkouts ask the same.
    asked = (origin.flake, origin.component or component.name, *sorted(origin.keys))
    return hashlib.sha256("\0".join(asked).encode()).hexdigest()


def _pinned(component: ToolSource, platform: str, origin: NixOrigin, pins: Pins) -> NixPin:
    pin = pins.get((component.name, platform))
    if pin is None or pin.input_sha256 != _question(component, origin):
        raise Refused(
            "lock-stale", "the lock has no pin of a component as it is asked for now",
            expected=f"a closure from {origin.flake}", where=_where(component, platform),
        )  # fmt: skip
    return pin


def _where(component: ToolSource, platform: str) -> str:
    return f"release.lock: nix.{component.name}.{platform}"
