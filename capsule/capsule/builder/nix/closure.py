"""A closure: a store path with all that it names, each archive kept in the cache by its digest.

A closure is closed: every reference is in it. It has nothing that is not needed: every path is
reached from its root. So a lock that was edited by hand, or a cache that lies, is found by a walk.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from capsule.builder.content_cache import ContentCache
from capsule.builder.lockfile import NixPath
from capsule.builder.nix.caches import BinaryCache, unpack_nar
from capsule.builder.nix.narinfo import NarInfo, decode_narinfo, verify_narinfo
from capsule_manifest.errors import CapsuleError, Failed, Refused

__all__ = ["check_closed", "obtain_closure", "read_closure"]


def read_closure(
    root: str, source: BinaryCache, keys: Sequence[str], kept: ContentCache
) -> tuple[NixPath, ...]:
    """Return all paths that `root` needs, sorted by name, and keep their archives.

    With `keys`, each path must be signed by one of them.

    Raises:
        Refused: `nix-closure-open`, `narinfo-malformed`, `nix-nar-mismatch`,
            `nix-signature-missing`, `nix-signature-invalid`.
        Failed: `nix-path-unavailable`, `cache-failed`.
    """
    found: dict[str, NixPath] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        info = _asked(source, name, keys)
        if info is None:
            raise Refused(
                "nix-closure-open", "a store path that is named is not there",
                expected=name, got="nothing", where=source.address,
            )  # fmt: skip
        _keep(source, info, kept)
        found[name] = _pin(info)
        waiting += info.references
    return tuple(found[name] for name in sorted(found))


def obtain_closure(
    paths: Iterable[NixPath],
    sources: Sequence[BinaryCache],
    keys: Sequence[str],
    kept: ContentCache,
) -> Mapping[str, Path]:
    """Return the archive of each path, by name; take from the caches what is not kept.

    A cache that has another content under a name than is pinned is passed over: the next may have
    the right one.

    Raises:
        Refused: `nix-nar-mismatch`, `narinfo-malformed`, `nix-signature-*`: of the last cache that
            was asked, when none is right.
        Failed: `nix-path-unavailable`, `cache-failed`.
    """
    found = {}
    for pin in paths:
        path = kept.kept(pin.nar_sha256)
        found[pin.name] = path if path is not None else _fetched(pin, sources, keys, kept)
    return found


def check_closed(root: str, paths: Sequence[NixPath], *, where: str) -> None:
    """Refuse paths that are not exactly what `root` needs.

    Raises:
        Refused: `nix-closure-open`.
    """
    by_name = {path.name: path for path in paths}
    if len(by_name) != len(paths):
        # Two digests under one name: which of them counts would depend on who reads it.
        raise Refused(
            "nix-closure-open", "a store path is pinned twice", expected="each once",
            got=f"{len(paths)} pins of {len(by_name)} paths", where=where,
        )  # fmt: skip
    reached: set[str] = set()
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        if name not in by_name:
            raise Refused(
                "nix-closure-open", "a store path that is named has no pin",
                expected=name, got="nothing", where=where,
            )  # fmt: skip
        reached.add(name)
        waiting += by_name[name].references
    idle = sorted(set(by_name) - reached)
    if idle:
        raise Refused(
            "nix-closure-open", "a store path is pinned and nothing names it",
            expected="only what the root needs", got=idle[0], where=where,
        )  # fmt: skip


def _fetched(
    pin: NixPath, sources: Sequence[BinaryCache], keys: Sequence[str], kept: ContentCache
) -> Path:
    last: CapsuleError | None = None
    for source in sources:
        try:
            info = _asked(source, pin.name, keys)
            if info is None:
                continue
            if _pin(info) != pin:
                raise Refused(
                    "nix-nar-mismatch", "a binary cache has another content than is pinned",
                    expected=f"sha256:{pin.nar_sha256}, {pin.nar_bytes} bytes",
                    got=f"sha256:{info.nar_sha256}, {info.nar_bytes} bytes",
                    where=f"{source.address}: {pin.name}",
                )  # fmt: skip
            return _keep(source, info, kept)
        except CapsuleError as error:
            if error.error_id == "cache-failed":
                raise
            last = error
    if last is not None:
        raise last
    raise Failed(
        "nix-path-unavailable", "no binary cache has a store path that is pinned",
        expected=pin.name, got=f"{len(sources)} caches asked",
        where=", ".join(source.address for source in sources) or "no cache is configured",
    )  # fmt: skip


def _asked(source: BinaryCache, name: str, keys: Sequence[str]) -> NarInfo | None:
    where = f"{source.address}: {name}"
    raw = source.narinfo(name)
    if raw is None:
        return None
    info = decode_narinfo(raw, where=where)
    if info.name != name:
        raise Refused(
            "narinfo-malformed", "a binary cache speaks of another store path than was asked",
            expected=name, got=info.name, where=where,
        )  # fmt: skip
    if keys:
        verify_narinfo(info, keys, where=source.address)
    return info


def _keep(source: BinaryCache, info: NarInfo, kept: ContentCache) -> Path:
    return kept.obtain_content(
        info.nar_sha256, partial(unpack_nar, source, info), where=f"{source.address}: {info.name}"
    )


def _pin(info: NarInfo) -> NixPath:
    return NixPath(
        name=info.name,
        nar_sha256=info.nar_sha256,
        nar_bytes=info.nar_bytes,
        references=info.references,
    )
