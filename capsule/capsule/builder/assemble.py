"""`capsule build`: from resolved inputs to a capsule directory.

The id follows from content alone, so it is the same whoever builds, where and when. A directory
appears under its final name at once and complete; before that it is a folder of a temporary name.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from capsule.builder.capsule_dir import (
    capsules_in,
    directory_name,
    first_lacking,
    known_packs,
    take_packs,
    write_metadata,
)
from capsule.builder.committed import committed_files
from capsule.builder.config import FilesSource, RecoverySource, ReleaseSource, ServiceSource
from capsule.builder.git_source import open_work_tree
from capsule.builder.managed_files import check_targets, files_input, recovery_input
from capsule.builder.model import ComponentInput
from capsule.builder.packer import Listing, list_component, pack_content, pack_name
from capsule.builder.remembered import Memory
from capsule.builder.resolve import Resolved
from capsule.builder.services import (
    check_budget,
    check_images,
    check_unit_names,
    images_named,
    service_input,
)
from capsule.durable import publish_path, read_bounded
from capsule.sbom.cyclonedx import encode_cyclonedx
from capsule.sbom.parts import bill_of
from capsule.sbom.provenance import encode_provenance
from capsule.sbom.spdx import encode_spdx
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.packing import Content, Packing, encode_packing
from capsule_manifest.paths import case_collisions
from capsule_manifest.release import (
    RELEASE_LIMITS,
    Component,
    ComponentKind,
    External,
    ManagedFile,
    Release,
    Role,
    Unit,
    capsule_id,
    encode_release,
)
from capsule_manifest.tree import encode_tree

__all__ = ["Built", "Draft", "assemble", "draft_release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A release whose content is known and not yet packed."""

    release: Release
    manifest: bytes
    capsule: CapsuleId
    listings: Mapping[ObjectId, Listing]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A capsule directory. `reused` counts components whose packs an earlier capsule had."""

    folder: Path
    capsule: CapsuleId
    release: Release
    reused: int
    warnings: tuple[str, ...]


def draft_release(
    source: ReleaseSource, resolved: Resolved, *, report: Callable[[str], None]
) -> Draft:
    """Hash everything and return the release manifest; writes nothing.

    Raises:
        Refused: what the kinds' own checks raise; `budget-exceeded`, `managed-file-not-allowed`,
            `case-collision`.
        Failed: `input-changed`.
    """
    inputs = list(resolved.components)
    units: dict[str, tuple[Unit, ...]] = {}
    files: dict[str, tuple[ManagedFile, ...]] = {}
    committed = committed_files(open_work_tree(source.folder), source.components)
    steps: dict[str, tuple[tuple[str, ...], ...]] = {}
    named: dict[str, frozenset[str]] = {}
    for item in source.components:
        match item:
            case ServiceSource():
                component, units[item.name] = service_input(item, committed)
                steps[item.name] = item.guarded_steps
                named[item.name] = images_named(item, committed)
            case FilesSource():
                component, files[item.name] = files_input(item, committed)
            case RecoverySource():
                component = recovery_input(item, committed)
            case _:
                continue
        inputs.append(component)
    listings: dict[ObjectId, Listing] = {}
    components = []
    for component in sorted(inputs, key=lambda item: (item.name, item.platforms)):
        report(component.name)
        listing = list_component(component)
        listings.setdefault(listing.tree.root, listing)
        described = _component(component, listing)
        components.append(
            replace(
                described,
                units=units.get(component.name, ()),
                files=files.get(component.name, ()),
                guarded_steps=steps.get(component.name, ()),
            )
        )
    release = Release(
        product=source.product,
        version=source.version,
        release_counter=source.release_counter,
        source=resolved.source,
        installer=source.installer,
        platforms=source.platforms,
        roles=source.roles,
        components=tuple(components),
        budgets=source.budgets,
    )
    warnings = [
        warning
        for name, role in source.roles.items()
        for warning in _check_role(name, role, release, listings, named)
    ]
    manifest = encode_release(release)
    return Draft(
        release=release,
        manifest=manifest,
        capsule=capsule_id(manifest),
        listings=listings,
        warnings=tuple(warnings),
    )


def assemble(
    draft: Draft, output: Path, *, report: Callable[[str], None], memory: Memory | None = None
) -> Built:
    """Write the capsule directory of a draft into `output`, reusing packs of capsules there.

    An existing directory of the same id is left as it is if no pack is missing: its packing and
    signatures stay valid.

    Raises:
        Refused: `counter-not-higher`, `output-differs`.
        Failed: `input-changed`, `controller-disk`.
    """
    memory = memory or Memory()
    output.mkdir(parents=True, exist_ok=True)
    folder = output / directory_name(draft.release, draft.capsule)
    siblings = capsules_in(output)
    _check_counter(draft, siblings)
    if folder.is_dir():
        _check_existing(draft, folder)
        reused = len(draft.listings)
    else:
        # A name of its own: two builds into one folder don't meet before the last step.
        with TemporaryDirectory(dir=output, prefix=f".{folder.name}.") as temporary:
            work = Path(temporary, "new")
            reused, packs = _write(draft, work, siblings, report, memory)
            publish_path(work, folder)
        for pack in packs:
            # Written or proved a moment ago, by this process.
            path = folder / "packs" / pack_name(pack)
            memory.prove(path, pack.hex(), memory.state(path))
    return Built(
        folder=folder,
        capsule=draft.capsule,
        release=draft.release,
        reused=reused,
        warnings=draft.warnings,
    )


def _write(
    draft: Draft,
    work: Path,
    siblings: Sequence[Path],
    report: Callable[[str], None],
    memory: Memory,
) -> tuple[int, set[ObjectId]]:
    """Write the members of a capsule; return how many components were packed before, and packs."""
    packs = work / "packs"
    packs.mkdir(parents=True)
    # Made while frames are compressed, which is no work for the interpreter.
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as beside:
        documents = beside.submit(_documents, draft)
        trees = beside.submit(_encoded_trees, draft)
        contents, reused = _write_packs(draft, packs, siblings, report, memory)
    packing = encode_packing(Packing(capsule=draft.capsule, contents=contents))
    write_metadata(work, draft.manifest, packing, trees.result(), documents.result())
    return reused, {pack.id for content in contents.values() for pack in content.packs}


def _write_packs(
    draft: Draft,
    packs: Path,
    siblings: Sequence[Path],
    report: Callable[[str], None],
    memory: Memory,
) -> tuple[dict[ObjectId, Content], int]:
    contents: dict[ObjectId, Content] = {}
    reused = 0
    for root, listing in draft.listings.items():
        if not listing.content_bytes:
            continue
        content = take_packs(root, siblings, packs, memory)
        if content is not None:
            reused += 1
        else:
            report(f"packing {listing.content_bytes} bytes")
            names = {item.name for item in draft.release.components if item.tree == root}
            content = pack_content(listing, packs, known_packs(names, siblings, memory))
        contents[root] = content
    return contents, reused


def _encoded_trees(draft: Draft) -> dict[ObjectId, bytes]:
    return {root: encode_tree(listing.tree) for root, listing in draft.listings.items()}


def _documents(draft: Draft) -> dict[str, bytes]:
    """Return what lies beside the content for those who ask what it is made of, and how."""
    bill = bill_of(draft.capsule, draft.release, draft.listings)
    return {
        "sbom/cyclonedx.json": encode_cyclonedx(bill),
        "sbom/spdx.json": encode_spdx(bill),
        "provenance/slsa.json": encode_provenance(bill, draft.release),
    }


def _component(component: ComponentInput, listing: Listing) -> Component:
    return Component(
        name=component.name,
        kind=ComponentKind(component.kind),
        platforms=component.platforms,
        tree=listing.tree.root,
        entries=len(listing.tree.entries),
        content_bytes=listing.content_bytes,
        external=tuple(
            External(type=item.type, name=item.name, digest=item.digest)
            for item in component.external
        ),
    )


def _check_role(
    name: str,
    role: Role,
    release: Release,
    listings: Mapping[ObjectId, Listing],
    named: Mapping[str, frozenset[str]],
) -> list[str]:
    for platform in release.platforms:
        # What one node receives: components of different platforms never meet.
        selected = release.selected(name, platform)
        units = tuple(unit for item in selected for unit in item.units)
        check_unit_names(name, units)
        check_budget(name, units, release.budgets)
        check_images(name, selected, named)
        check_targets(name, tuple(file for item in selected for file in item.files))
    chosen = [component for component in release.components if component.name in role.components]
    warnings = []
    for component in chosen:
        paths = (entry.path for entry in listings[component.tree].tree.entries)
        for first, second in case_collisions(paths):
            text = f"{component.name}: {first} and {second}"
            if role.case_collisions == "error":
                raise Refused(
                    "case-collision",
                    "two names differ only by case or normalisation",
                    got=text,
                    where=f"role {name}",
                )
            warnings.append(f"names differ only by case or normalisation: {text}")
    return warnings


def _check_counter(draft: Draft, siblings: Sequence[Path]) -> None:
    own_name = directory_name(draft.release, draft.capsule)
    product, own = draft.release.product.rpartition("/")[2], draft.release.release_counter
    for sibling in siblings:
        name, counter, _ = sibling.name.rsplit("-", 2)
        if name == product and int(counter) >= own and sibling.name != own_name:
            raise Refused(
                "counter-not-higher",
                "the output folder has a capsule with this or a higher release counter",
                expected=f"a release_counter above {counter}",
                got=own,
                where=sibling,
            )


def _check_existing(draft: Draft, folder: Path) -> None:
    """Refuse a folder of the right name that holds another capsule, or a part of this one.

    Raises:
        Refused: `output-differs`, and what `decode_packing` raises.
    """
    if read_bounded(folder / "capsule.json", RELEASE_LIMITS.size_bytes_max) != draft.manifest:
        raise Refused(
            "output-differs",
            "the output folder has another capsule under the same name",
            expected=draft.capsule,
            where=folder,
        )
    lacking = first_lacking(folder)
    if lacking is not None:
        raise Refused(
            "output-differs",
            "the capsule in the output folder is not whole",
            expected="each pack that its packing names, in its length",
            got=f"{lacking.relative_to(folder)} missing or of another length",
            where=folder,
        )
