"""What differs between two capsules, and what a host that has one would need for the other.

Neither is verified. Short texts, which units and managed files are, are read and compared by line;
everything else by the digests of the listings.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Final

from blake3 import blake3

from capsule.builder.inspection import Inspection, component_tree
from capsule.builder.opened import OpenCapsule
from capsule.builder.packer import pack_name
from capsule_manifest.digest import ObjectId, blake3_text
from capsule_manifest.errors import Refused
from capsule_manifest.pack import Frame, Pack, decode_frame
from capsule_manifest.packing import Content
from capsule_manifest.release import Component, ManagedFile, Release, Unit
from capsule_manifest.tree import Entry, Tree, TreeDiff, content_order, diff_trees

__all__ = [
    "Change",
    "Comparison",
    "ComponentChange",
    "Need",
    "TextChange",
    "compare_capsules",
]

_TEXT_BYTES_MAX: Final = 64 * 1024
_CONTEXT_LINES: Final = 2
_COMMIT: Final = "git-commit"
_NO_CONTENT: Final = Content(stream_bytes=0, packs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value before and after; empty where there was or is none."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """The changed lines of a short text, in unified form without its two header lines."""

    file: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentChange:
    """What became of one component. `before` or `after` is None if it was added or removed."""

    before: Component | None
    after: Component | None
    files: TreeDiff
    externals: tuple[Change, ...]
    settings: tuple[Change, ...]
    texts: tuple[TextChange, ...]

    @property
    def component(self) -> Component:
        """Return the component as it is, or as it was."""
        found = self.after or self.before
        assert found is not None, "a change has a side"
        return found

    @property
    def state(self) -> str:
        """Return `added`, `removed`, `changed` or `same`."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        is_same = self.before.tree == self.after.tree and not self.externals and not self.settings
        return "same" if is_same else "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a host of one role and platform that holds the old release gets sent for the new one.

    `content_bytes` is the size of the objects that it lacks, `stored_bytes` that of the whole
    frames which carry them.
    """

    role: str
    platform: str
    frames: int
    stored_bytes: int
    content_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two capsules compared."""

    header: tuple[Change, ...]
    components: tuple[ComponentChange, ...]
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    source: OpenCapsule
    found: Inspection
    trees: Mapping[ObjectId, Tree]

    def tree(self, component: Component | None) -> Tree | None:
        return self.trees[component.tree] if component else None


def compare_capsules(
    old: tuple[OpenCapsule, Inspection], new: tuple[OpenCapsule, Inspection]
) -> Comparison:
    """Compare two capsules.

    Raises:
        Refused: what `decode_tree` and `decode_frame` raise; `object-mismatch`,
            `packing-inconsistent`.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    before, after = _side(*old), _side(*new)
    pairs = _pairs(before.found.release.components, after.found.release.components)
    return Comparison(
        header=tuple(
            _changes(_header_values(before.found.release), _header_values(after.found.release))
        ),
        components=tuple(_component(before, after, left, right) for left, right in pairs),
        needs=tuple(_needs(before, after)),
    )


def _side(source: OpenCapsule, found: Inspection) -> _Side:
    trees = {item.tree: item for item in found.release.components}
    return _Side(
        source=source,
        found=found,
        trees={root: component_tree(source, item) for root, item in trees.items()},
    )


def _header_values(release: Release) -> dict[str, str]:
    values = {
        "product": release.product,
        "version": release.version,
        "counter": str(release.release_counter),
        "commit": release.source.commit,
        "installer": release.installer.version,
        "d1": f"{release.budgets.d1_ms / 1000:g} s",
        "d2": f"{release.budgets.d2_ms / 1000:g} s",
        "ttl": f"{release.budgets.ttl_ms / 1000:g} s",
    }
    for name, role in release.roles.items():
        collisions = f"; case collisions: {role.case_collisions}"
        values[f"role {name}"] = ", ".join(role.components) + collisions
    for name, item in release.platforms.items():
        values[f"platform {name}"] = (
            f"{item.machine}, glibc {item.glibc}, Python {item.python}"
            f" at {item.interpreter or 'whatever the host finds'}"
        )
    return values


def _pairs(
    old: Iterable[Component], new: Iterable[Component]
) -> list[tuple[Component | None, Component | None]]:
    """Pair components by name and platforms, then those whose platforms changed by name alone."""
    before = {(item.name, item.platforms): item for item in old}
    after = {(item.name, item.platforms): item for item in new}
    pairs: list[tuple[Component | None, Component | None]] = [
        (before.pop(key), after.pop(key)) for key in sorted(set(before) & set(after))
    ]
    for name in sorted({name for name, _ in (*before, *after)}):
        lefts = [before[key] for key in sorted(before) if key[0] == name]
        rights = [after[key] for key in sorted(after) if key[0] == name]
        if len(lefts) == len(rights) == 1:
            pairs.append((lefts[0], rights[0]))
        else:
            pairs += [(item, None) for item in lefts]
            pairs += [(None, item) for item in rights]
    return sorted(
        pairs, key=lambda pair: next((item.name, item.platforms) for item in pair if item)
    )


def _component(
    before: _Side, after: _Side, left: Component | None, right: Component | None
) -> ComponentChange:
    files = _diff(before.tree(left), after.tree(right))
    return ComponentChange(
        before=left,
        after=right,
        files=files,
        externals=tuple(_externals(left, right)),
        settings=tuple(_changes(_settings(left), _settings(right))),
        texts=tuple(_texts(before, after, left, right, files)),
    )


def _diff(left: Tree | None, right: Tree | None) -> TreeDiff:
    if left is not None and right is not None:
        return diff_trees(left, right)
    return TreeDiff(
        added=right.entries if right else (), removed=left.entries if left else (), changed=()
    )


def _externals(before: Component | None, after: Component | None) -> Iterator[Change]:
    """Yield what came from elsewhere and changed; two wheels of one version by tags and digest."""
    old, new = _named(before), _named(after)
    for name in sorted({*old, *new}):
        left, right = old.get(name), new.get(name)
        if left is None or right is None or left[0] != right[0]:
            yield Change(name=name, before=left[0] if left else "", after=right[0] if right else "")
        elif left[1] != right[1]:
            yield Change(name=name, before=" ".join(left), after=" ".join(right))


def _named(component: Component | None) -> dict[str, tuple[str, str]]:
    """Return externals by name, each as what people call it and what pins it.

    Without commits: there is one for the whole release, and it changes when no content does.
    """
    found: dict[str, tuple[str, str]] = {}
    for item in component.external if component else ():
        if item.type == "wheel":
            name, _, rest = item.name.partition("-")
            version, _, tags = rest.removesuffix(".whl").partition("-")
            found[f"wheel {name}"] = (version, f"{tags} {item.digest}")
        elif item.type != _COMMIT:
            found[f"{item.type} {item.name}"] = (item.digest, "")
    return found


def _settings(component: Component | None) -> dict[str, str]:
    if component is None:
        return {}
    found = {unit.name: _unit(unit) for unit in component.units}
    found |= {item.target: _managed(item) for item in component.files}
    found |= {f"guarded step {' '.join(argv)}": "declared" for argv in component.guarded_steps}
    return {**found, "platforms": ", ".join(component.platforms) or "all"}


def _unit(unit: Unit) -> str:
    probe = f"{unit.probe.http} within {unit.probe.timeout_ms / 1000:g} s" if unit.probe else "none"
    return (
        f"stop {unit.stop_timeout_ms / 1000:g} s, start {unit.start_timeout_ms / 1000:g} s, "
        f"soak {unit.soak_ms / 1000:g} s, probe {probe}"
    )


def _managed(item: ManagedFile) -> str:
    template = ", template" if item.template else ""
    return f"{item.owner}:{item.group} {item.mode:04o}{template}"


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        left, right = before.get(name, ""), after.get(name, "")
        if left != right:
            yield Change(name=name, before=left, after=right)


def _texts(
    before: _Side, after: _Side, left: Component | None, right: Component | None, files: TreeDiff
) -> Iterator[TextChange]:
    """Yield the changed lines of units and managed files that exist on both sides."""
    if left is None or right is None:
        return
    named = {unit.file for unit in right.units} | {item.file for item in right.files}
    for old, new in files.changed:
        if new.path in named:
            was, now = _text(before, left, old), _text(after, right, new)
            if was is not None and now is not None and was != now:
                yield TextChange(file=new.path, lines=_lines(was, now))


def _lines(was: str, now: str) -> tuple[str, ...]:
    lines = unified_diff(was.splitlines(), now.splitlines(), n=_CONTEXT_LINES, lineterm="")
    return tuple(lines)[2:]


def _text(side: _Side, component: Component, entry: Entry) -> str | None:
    """Return a short text of a component; None for what is long or no text."""
    if entry.object is None or entry.size_bytes > _TEXT_BYTES_MAX:
        return None
    try:
        return _object(side, component, entry.object).decode()
    except UnicodeDecodeError:
        return None


def _object(side: _Side, component: Component, wanted: ObjectId) -> bytes:
    """Return an object's bytes from the frames that carry it, each proved."""
    start = 0
    for digest, size_bytes in content_order(side.trees[component.tree]):
        if digest == wanted:
            found = _stream(side, component, start, start + size_bytes)
            if blake3(found).digest() != digest:
                raise Refused(
                    "object-mismatch",
                    "an object is not what its tree names",
                    expected=blake3_text(digest),
                    where=side.source.path,
                )
            return found
        start += size_bytes
    return b""  # an empty file is an object of no stream


def _stream(side: _Side, component: Component, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end` of a component's content stream."""
    content = side.found.packing.contents.get(component.tree, _NO_CONTENT)
    pieces = []
    for pack, frame, at in _frames(content):
        if at < end and at + frame.content_bytes > start:
            name = f"packs/{pack_name(pack.id)}"
            stored = b"".join(side.source.chunks(name, frame.offset, frame.stored_bytes))
            pieces.append(decode_frame(stored, frame)[max(0, start - at) : end - at])
    return b"".join(pieces)


def _frames(content: Content) -> Iterator[tuple[Pack, Frame, int]]:
    """Yield each frame with its pack and where it begins in the content stream."""
    at = 0
    for pack in content.packs:
        for frame in pack.frames:
            yield pack, frame, at
            at += frame.content_bytes


def _needs(before: _Side, after: _Side) -> Iterator[Need]:
    old, new = before.found.release, after.found.release
    for role in new.roles:
        for platform in new.platforms:
            held: set[ObjectId] = set()
            if role in old.roles and platform in old.platforms:
                chosen = old.selected(role, platform)
                held = {
                    name for item in chosen for name, _ in content_order(before.trees[item.tree])
                }
            yield _need(after, role, platform, held)


def _need(side: _Side, role: str, platform: str, held: set[ObjectId]) -> Need:
    """Return what has to be sent; a frame is sent whole if one object in it is lacking.

    Counted in the order in which a host would ask: what one component brought, the next has.
    """
    frames = stored_bytes = content_bytes = 0
    known = set(held)
    for component in side.found.release.selected(role, platform):
        spans: list[tuple[int, int]] = []
        position = 0
        for digest, size_bytes in content_order(side.trees[component.tree]):
            if digest not in known:
                spans.append((position, position + size_bytes))
                known.add(digest)
            position += size_bytes
        content_bytes += sum(end - start for start, end in spans)
        for frame in _touched(spans, side.found.packing.contents.get(component.tree, _NO_CONTENT)):
            frames += 1
            stored_bytes += frame.stored_bytes
    return Need(
        role=role,
        platform=platform,
        frames=frames,
        stored_bytes=stored_bytes,
        content_bytes=content_bytes,
    )


def _touched(spans: list[tuple[int, int]], content: Content) -> Iterator[Frame]:
    """Yield the frames that carry a part of these spans, which are in order."""
    index = 0
    for _, frame, at in _frames(content):
        while index < len(spans) and spans[index][1] <= at:
            index += 1
        if index < len(spans) and spans[index][0] < at + frame.content_bytes:
            yield frame
