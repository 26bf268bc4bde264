"""Small signed capsule directories, made from bytes, for tests of what reads them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from capsule_manifest.digest import CapsuleId, ObjectId, object_id
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.keys import Signer
from capsule_manifest.pack import Pack, PackWriter, cut_frames
from capsule_manifest.packing import Content, Packing, encode_packing
from capsule_manifest.release import (
    Budgets,
    Component,
    ComponentKind,
    External,
    Platform,
    Release,
    Role,
    Unit,
    capsule_id,
    encode_release,
    generation_name,
)
from capsule_manifest.statements import ReleaseClaim, packing_statement, release_statement
from capsule_manifest.tree import Tree, build_tree, content_order, encode_tree
from support import documents, formats

__all__ = ["MiniCapsule", "fake_runtime", "real_runtime", "write_capsule"]

_FAKE_HOST = Path(__file__).parents[1] / "fakes" / "fake_host.py"

_HOST_LIBRARIES = (
    "blake3",
    "zstandard",
    "cryptography",
    "cffi",
    "_cffi_backend",
    "pycparser",
    "click",
)

Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniCapsule:
    """A capsule directory that lies in `folder`."""

    folder: Path
    release: Release
    capsule: CapsuleId
    trees: Mapping[str, ObjectId]

    @property
    def generation(self) -> str:
        return generation_name(self.release.release_counter, self.capsule)


def fake_runtime() -> Files:
    """Return a runtime whose host program is the fake host of the tests."""
    paths = ":".join(path for path in sys.path if path)
    launcher = (
        "#!/bin/sh\n"
        'root=$(cd "$(dirname "$0")/../../.." && pwd)\n'
        f"PYTHONPATH='{paths}' exec '{sys.executable}' '{_FAKE_HOST}' \"$root\" @RUNTIME@ \"$@\"\n"
    )
    return {
        "site/capsule_installer/bin_capsule.sh": launcher.encode(),
        "site/capsule_installer/launch.py": b"# the fake host needs no launcher of its own\n",
        "VERSION": b"0.1.0\n",
        "site/empty.txt": b"",
    }


@cache
def real_runtime() -> Files:
    """Return the host program of this tree, with the libraries that the tests run with."""
    files: dict[str, bytes] = {"VERSION": b"0.1.0\n"}
    for package in ("capsule_manifest", "capsule_installer"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        _add_folder(files, Path(spec.origin).parent)
    for package in _HOST_LIBRARIES:
        spec = find_spec(package)
        assert spec is not None, package
        assert spec.origin is not None, package
        place = Path(spec.origin)
        if place.name == "__init__.py":
            _add_folder(files, place.parent)
        else:
            files[f"site/{place.name}"] = place.read_bytes()
    return files


def _add_folder(files: dict[str, bytes], folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            files[f"site/{path.relative_to(folder.parent).as_posix()}"] = path.read_bytes()


def write_capsule(
    folder: Path,
    *,
    counter: int = 1,
    components: Mapping[str, Files] | None = None,
    runtime: Files | None = None,
    unit: str = "[Service]\nExecStart=/bin/true\n",
    budgets: Budgets | None = None,
    signers: Sequence[Signer] = (documents.RELEASE_KEY,),
    interpreter: str | None = sys.executable,
    soak_ms: int = 100,
    start_ms: int = 1000,
    stop_ms: int = 1000,
    kinds: Mapping[str, ComponentKind] = MappingProxyType({}),
    external: Mapping[str, tuple[External, ...]] = MappingProxyType({}),
) -> MiniCapsule:
    """Write a capsule with one service and these components; return what it is.

    The service may take `start_ms` to start and `stop_ms` to stop, and soaks for `soak_ms`.
    A component is a source unless `kinds` says otherwise, and `external` is what others call it.
    """
    contents: dict[str, tuple[ComponentKind, Files]] = {
        name: (kinds.get(name, ComponentKind.SOURCE), files)
        for name, files in (components or {"app": {"main.py": b"print('hello')\n"}}).items()
    }
    contents["runtime-bookworm"] = (ComponentKind.RUNTIME, runtime or fake_runtime())
    contents["web"] = (ComponentKind.SERVICE, {"hello.service": unit.encode()})
    for name in ("trees", "packs", "signatures"):
        (folder / name).mkdir(parents=True)
    packed: dict[ObjectId, Content] = {}
    described: list[Component] = []
    for name, (kind, files) in sorted(contents.items()):
        tree = build_tree(formats.file(path, content) for path, content in files.items())
        (folder / "trees" / tree.root.hex()).write_bytes(encode_tree(tree))
        packed[tree.root] = _pack(folder / "packs", tree, files)
        component = _describe(name, kind, tree, (start_ms, stop_ms, soak_ms))
        described.append(replace(component, external=external.get(name, ())))
    release = replace(
        documents.make_release(),
        release_counter=counter,
        platforms={
            "bookworm": Platform(
                machine="x86_64", glibc="2.36", python="3.11", interpreter=interpreter
            )
        },
        roles={"web": Role(components=tuple(sorted(set(contents) - {"runtime-bookworm"})))},
        components=tuple(described),
        budgets=budgets or Budgets(),
    )
    manifest = encode_release(release)
    identity = capsule_id(manifest)
    packing = encode_packing(Packing(capsule=identity, contents=packed))
    (folder / "capsule.json").write_bytes(manifest)
    (folder / "packing.json").write_bytes(packing)
    claim = ReleaseClaim(
        capsule=identity,
        product=release.product,
        version=release.version,
        release_counter=counter,
    )
    statements = {
        "release": release_statement(claim),
        "packing": packing_statement(packing, identity),
    }
    for signer in signers:
        for about, statement in statements.items():
            bundle = encode_bundle(sign(statement, payload_type=IN_TOTO, signer=signer))
            name = f"{about}-{signer.public.short}.sigstore.json"
            (folder / "signatures" / name).write_bytes(bundle)
    return MiniCapsule(
        folder=folder,
        release=release,
        capsule=identity,
        trees={component.name: component.tree for component in described},
    )


def _pack(folder: Path, tree: Tree, files: Files) -> Content:
    by_object = {object_id(content): content for content in files.values()}
    objects = [by_object[name] for name, _ in content_order(tree)]
    packs: list[Pack] = []
    if objects:
        written = bytearray()
        writer = PackWriter(written.extend)
        for content in cut_frames([content] for content in objects):
            writer.add(content)
        packs.append(writer.finish())
        (folder / f"{packs[0].id.hex()}.pack").write_bytes(bytes(written))
    return Content(stream_bytes=sum(len(content) for content in objects), packs=tuple(packs))


def _describe(
    name: str, kind: ComponentKind, tree: Tree, times_ms: tuple[int, int, int]
) -> Component:
    start_ms, stop_ms, soak_ms = times_ms
    units: tuple[Unit, ...] = ()
    if kind is ComponentKind.SERVICE:
        units = (
            Unit(
                name="hello.service",
                file="hello.service",
                start_timeout_ms=start_ms,
                stop_timeout_ms=stop_ms,
                soak_ms=soak_ms,
                probe=None,
            ),
        )
    return Component(
        name=name,
        kind=kind,
        platforms=("bookworm",) if kind is ComponentKind.RUNTIME else (),
        tree=tree.root,
        entries=len(tree.entries),
        content_bytes=sum(size for _, size in content_order(tree)),
        units=units,
    )
