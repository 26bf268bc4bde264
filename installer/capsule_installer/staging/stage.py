"""Stage one delivery: plan, take frames, realise, rehearse, seal. Services keep running.

A stop anywhere leaves the host as it was, plus a cache: frames that came are not sent again. The
same delivery once more costs a stat of each file. Another route for the same capsule costs a new
marker, if its values render the same files, and is refused for a generation in use if they don't.

Source: design, section 8.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from capsule_installer.host.host import Host
from capsule_installer.host.leases import take_lease
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.services.base import ServiceManager
from capsule_installer.staging.bytecode import Bytecode
from capsule_installer.staging.frames import FramePlan, FrameSink, OpenFrame, part_path, plan_frames
from capsule_installer.staging.generation import LINKED_KINDS, realise
from capsule_installer.staging.incoming import Delivery
from capsule_installer.staging.present import BYTECODE, RUNTIME_BYTECODE, is_as_staged
from capsule_installer.staging.rehearse import modules_of, rehearse
from capsule_installer.staging.render import (
    TEXT_BYTES_MAX,
    image_values,
    node_values,
    render,
    unit_addition,
)
from capsule_installer.staging.runtime import adopt_runtime, runtime_name
from capsule_installer.staging.seal import (
    StageFacts,
    put_file,
    seal_generation,
    stage_receipt,
    trusted_objects,
    usable_markers,
)
from capsule_installer.staging.space import check_space
from capsule_installer.staging.store import ObjectStore
from capsule_installer.staging.venv import Python, bytecode_tree, make_venv
from capsule_installer.system.ahead import Ahead
from capsule_installer.system.fsops import keep_name, remove_tree, replace_file
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import ObjectId, blake3_text, object_id
from capsule_manifest.envelope import Envelope
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import Signer
from capsule_manifest.records import Marker, Step
from capsule_manifest.release import Component, ComponentKind
from capsule_manifest.tree import Tree

if TYPE_CHECKING:
    from capsule_installer.engines.base import Images

__all__ = ["Stage"]

_COMPILED_KINDS: Final = frozenset({ComponentKind.SOURCE, ComponentKind.WHEELS})


class Stage:
    """One staging. `plan`, then `take` for each frame, then `finish`. The caller holds the lock.

    `images` returns the images of this host's engine; it is asked only if a unit runs one.
    """

    def __init__(
        self,
        host: Host,
        delivery: Delivery,
        *,
        signer: Signer,
        services: ServiceManager,
        python: Python,
        images: "Callable[[], Images]",
    ) -> None:
        self._host = host
        self._disk = host.disk
        self._layout = host.layout
        self._delivery = delivery
        self._signer = signer
        self._services = services
        self._python = python
        self._images = images
        self._folder = host.layout.generation(delivery.generation)
        self._trees = {root: listing.tree for root, listing in delivery.listings.items()}
        self._roots = {component.name: component.tree for component in delivery.components}
        self._began_ms = host.clock.boot_ms()
        self._step_ms = self._began_ms
        self._steps: list[Step] = []
        markers = usable_markers(host, signer.public)
        self._bytecode = Bytecode(host, python, markers)
        self._store = ObjectStore(
            host.disk, host.layout, trusted_objects(host, markers, self._trees)
        )
        self._marker = self._present_marker(markers)
        self._is_whole = self._marker is not None and is_as_staged(
            host, delivery, self._marker, self._store
        )
        self._plans: dict[ObjectId, FramePlan] = {}
        self._listings: list[Tree] = []
        self._sink = FrameSink(host.disk, host.layout, self._store, {})
        self.took_ms = 0

    # --- plan ----------------------------------------------------------------------------------

    def plan(self) -> dict[str, JsonValue]:
        """Return the fields of the want: the frames that this host lacks and what they cost.

        Raises:
            Refused: `space-short`.
            Failed: `disk-*`.
        """
        if self._is_whole:
            free_bytes, _ = self._disk.free(self._layout.opt)
            return {"frames": {}, "bytes": 0, "free_after": free_bytes}
        for component in self._delivery.components:
            if component.kind is ComponentKind.RUNTIME:
                adopt_runtime(self._disk, self._layout, self._store, self._trees[component.tree])
        planned: set[ObjectId] = set()
        for root, listing in self._delivery.listings.items():
            self._plans[root] = plan_frames(self._disk, self._layout, self._store, listing, planned)
        self._drop_other_parts()
        free_after = check_space(self._host, self._delivery, self._plans)
        self._sink = FrameSink(self._disk, self._layout, self._store, self._plans)
        self._end_step("plan")
        return {
            "frames": {
                blake3_text(root): list(plan.wanted)
                for root, plan in self._plans.items()
                if plan.wanted
            },
            "bytes": sum(plan.stored_bytes for plan in self._plans.values()),
            "free_after": free_after,
        }

    def keep(self) -> None:
        """Keep what lies here and what comes: the listings, not to be sent again, and a lease.

        To be called when the want is said, so that a disk is waited for while frames are on their
        way, and before the first is taken. Raises: `disk-*`.
        """
        chain = ReceiptChain(self._disk, self._layout, self._signer)
        take_lease(self._disk, self._layout, chain, self._delivery.generation, self._trees)
        if self._is_whole:
            return
        if not self._in_use():
            self._unmark()
        for root, listing in self._delivery.listings.items():
            path = self._layout.listing(root)
            if listing.raw:
                replace_file(self._disk, path, listing.raw, 0o600)
            else:
                keep_name(self._disk, path)

    def open(self, body: bytes) -> Ahead[OpenFrame]:
        """Begin to decode the next frame. Raises: as `FrameSink.open`."""
        return self._sink.open(body)

    def take(self, opened: OpenFrame) -> tuple[int, int]:
        """Take a frame; return how many came and their bytes. Raises: as `FrameSink.take`."""
        self._sink.take(opened)
        return self._sink.frames, self._sink.stored_bytes

    def close(self) -> None:
        """Let go of what is open, keeping what came, if the disk has taken it.

        Raises: `disk-*`, if even removing what it has not taken fails.
        """
        self._sink.close()
        try:
            self._disk.end_sync()
        except Failed as failure:
            self._host.reporter.log(f"what came is not kept: {failure}")
            self._store.drop_new()

    # --- realise -------------------------------------------------------------------------------

    def finish(self) -> Envelope:
        """Realise, rehearse and seal what was delivered; return the stage receipt.

        Raises:
            Refused: `wire-malformed`, `object-malformed`, `template-*`, `rehearsal-failed`,
                `generation-in-use`.
            Failed: `disk-*`, `process-*`.
        """
        self._sink.finish()
        if self._steps:
            self._end_step("receive")
        rendered = self._render()
        derived = {path: object_id(data) for path, data in rendered.items()}
        if not self._is_whole or not self._says(derived):
            self._rebuild(rendered, derived)
        elif self._marker is not None and not self._knows_route(self._marker):
            self._end_step("render")
            self._load_images(rendered)
            self._seal(self._marker.derived)
        else:
            # Nothing is left to do but to rely on what an earlier run did; an engine may not have.
            self._load_images(rendered)
            keep_name(self._disk, self._layout.marker(self._delivery.generation))
        receipt = stage_receipt(self._host, self._delivery, self._signer, self._facts())
        self.took_ms = self._host.clock.boot_ms() - self._began_ms
        return receipt

    def counts(self) -> dict[str, int]:
        """Return what was staged and how much of it was here before."""
        objects = {
            entry.object: entry.size_bytes
            for tree in self._trees.values()
            for entry in tree.entries
            if entry.object is not None
        }
        came = sum(len(plan.missing) for plan in self._plans.values())
        return {
            "objects": len(objects),
            "content_bytes": sum(objects.values()),
            "reused_objects": len(objects) - came,
            "frames": self._sink.frames,
            "stored_bytes": self._sink.stored_bytes,
        }

    def _rebuild(self, rendered: Mapping[str, bytes], derived: Mapping[str, ObjectId]) -> None:
        if self._in_use() and not self._says(derived):
            raise Refused(
                "generation-in-use",
                "this node's values would change files of a generation in use",
                got=self._delivery.generation,
            )
        if not self._in_use():
            if self._is_whole:
                self._unmark()
            else:
                remove_tree(self._disk, self._folder)
        self._realise()
        self._write_files(rendered)
        self._end_step("realise")
        more = self._make_python()
        self._end_step("bytecode")
        # First, because a unit whose engine is missing has no program that can be rehearsed.
        self._load_images(rendered)
        rehearse(rendered, self._venv_modules(), self._services, self._python)
        self._end_step("rehearse")
        self._seal({**derived, **more})

    def _realise(self) -> None:
        for component in self._delivery.components:
            tree = self._trees[component.tree]
            if component.kind is ComponentKind.RUNTIME:
                realise(self._disk, self._store, tree, self._runtime(component))
                continue
            if self._disk.stat(self._folder) is None:
                self._disk.mkdir(self._folder, 0o755)
            if component.kind in LINKED_KINDS:
                realise(self._disk, self._store, tree, f"{self._folder}/{component.name}")

    def _load_images(self, rendered: Mapping[str, bytes]) -> None:
        components = self._delivery.components
        if not any(component.kind is ComponentKind.IMAGE for component in components):
            return
        # Only a release with images pays for the import.
        from capsule_installer.engines.staged import load_staged_images

        clock = self._host.clock
        if load_staged_images(self._images, components, rendered, folder=self._folder, clock=clock):
            self._end_step("images")

    def _write_files(self, rendered: Mapping[str, bytes]) -> None:
        files = {path: (data, 0o444 if path.startswith("units/") else 0o400)
                 for path, data in rendered.items()}  # fmt: skip
        files["capsule.json"] = (self._delivery.manifest, 0o444)
        for name, bundle in self._delivery.signatures.items():
            files[f"signatures/{name}"] = (bundle, 0o444)
        for path, (data, mode) in sorted(files.items()):
            self._make_folders(path)
            put_file(self._disk, f"{self._folder}/{path}", data, mode)

    def _make_folders(self, path: str) -> None:
        folder = self._folder
        for name in path.split("/")[:-1]:
            folder = f"{folder}/{name}"
            if self._disk.stat(folder) is None:
                self._disk.mkdir(folder, 0o755)

    def _make_python(self) -> dict[str, ObjectId]:
        delivery = self._delivery
        python = delivery.release.platforms[delivery.begin.platform].python
        derived: dict[str, ObjectId] = {}
        compiled: dict[str, Tree] = {}
        for component in delivery.components:
            folder = f"{self._folder}/{component.name}"
            if component.kind in _COMPILED_KINDS:
                self._bytecode.make(component, folder, delivery.interpreter, python)
                compiled[component.name] = self._trees[component.tree]
            if component.kind is ComponentKind.WHEELS:
                settings = make_venv(
                    self._disk, folder, interpreter=delivery.interpreter, python=python
                )
                derived[f"{component.name}/pyvenv.cfg"] = object_id(settings)
            if component.kind is ComponentKind.RUNTIME:
                derived[RUNTIME_BYTECODE] = self._runtime_bytecode(component, python)
        derived[BYTECODE] = self._keep_listing(bytecode_tree(self._disk, self._folder, compiled))
        return derived

    def _runtime_bytecode(self, component: Component, python: str) -> ObjectId:
        kept = self._bytecode.of_runtime(component, python)
        if kept is not None:
            return kept
        self._python.compile(self._runtime(component), self._delivery.interpreter)
        trees = {runtime_name(component.tree): self._trees[component.tree]}
        return self._keep_listing(bytecode_tree(self._disk, self._layout.runtimes, trees))

    def _keep_listing(self, tree: Tree) -> ObjectId:
        self._listings.append(tree)
        return tree.root

    def _venv_modules(self) -> list[tuple[str, list[str]]]:
        return [
            (
                f"{self._folder}/{component.name}/bin/python",
                modules_of(
                    self._trees[component.tree],
                    lambda path, component=component: self._read(component, path),  # type: ignore[misc]
                ),
            )
            for component in self._delivery.components
            if component.kind is ComponentKind.WHEELS
        ]

    def _render(self) -> dict[str, bytes]:
        delivery = self._delivery
        values = node_values(
            self._layout,
            generation=delivery.generation,
            node=delivery.begin.node,
            node_vars=delivery.node.vars,
        ) | image_values(delivery.components)
        addition = unit_addition(
            self._layout,
            delivery.release,
            capsule=delivery.capsule,
            generation=delivery.generation,
        )
        return render(delivery.components, values, addition, self._read)

    def _read(self, component: Component, path: str) -> bytes:
        for entry in self._trees[component.tree].entries:
            if entry.path == path and entry.object is not None:
                held = self._store.find(entry.object, entry.size_bytes) or self._store.require(
                    entry.object, entry.size_bytes, executable=False
                )
                return self._disk.read(held, TEXT_BYTES_MAX)
        raise Refused(
            "document-invalid",
            "the manifest names a file that its component lacks",
            got=path,
            where=component.name,
        )

    # --- seal ----------------------------------------------------------------------------------

    def _seal(self, derived: Mapping[str, ObjectId]) -> None:
        delivery = self._delivery
        marker = Marker(
            kind="staged",
            node=delivery.begin.node,
            node_key=self._signer.public.keyid,
            capsule=delivery.capsule,
            release_counter=delivery.release.release_counter,
            generation=delivery.generation,
            previous=self._host.state.generation_of(self._layout.current),
            route=delivery.route.digest,
            fence=delivery.begin.fence,
            op_id="",
            trees=self._roots,
            derived=derived,
        )
        if self._marker is not None:
            # What was installed when it was staged first does not change by staging again.
            marker = replace(marker, previous=self._marker.previous)
        seal_generation(self._host, marker, self._signer, delivery.route_envelope, self._listings)
        self._end_step("seal")

    def _facts(self) -> StageFacts:
        return StageFacts(
            steps=self._steps,
            counts=self.counts(),
            source=self._host.state.generation_of(self._layout.current),
            fence=self._delivery.begin.fence,
        )

    def _unmark(self) -> None:
        path = self._layout.marker(self._delivery.generation)
        if self._disk.stat(path) is not None:
            self._disk.unlink(path)
        # The generation changes from here on: a marker that came back after a power loss would
        # speak for files that are not there. Also one that a stopped run has withdrawn.
        self._disk.fsync_dir(self._layout.staged, "withdrawn marker's name")

    # --- what is here --------------------------------------------------------------------------

    def _present_marker(self, markers: Mapping[str, Marker]) -> Marker | None:
        marker = markers.get(self._delivery.generation)
        if marker is not None and marker.capsule != self._delivery.capsule:
            raise Refused(
                "generation-in-use",
                "another capsule has the same generation name",
                expected=self._delivery.capsule,
                got=marker.capsule,
            )
        return marker

    def _says(self, derived: Mapping[str, ObjectId]) -> bool:
        if self._marker is None:
            return False
        said = self._marker.derived
        rendered = {key for key in said if key.startswith(("units/", "files/"))}
        return {key: said[key] for key in rendered} == derived

    def _knows_route(self, marker: Marker) -> bool:
        stored = self._host.state.route_envelope()
        digest = self._delivery.route.digest
        return stored is not None and stored.digest == marker.route == digest

    def _in_use(self) -> bool:
        links = (self._layout.current, self._layout.previous)
        used = {self._host.state.generation_of(link) for link in links}
        return self._delivery.generation in used

    def _runtime(self, component: Component) -> str:
        return f"{self._layout.runtimes}/{runtime_name(component.tree)}"

    def _drop_other_parts(self) -> None:
        wanted = {
            part_path(self._layout, digest) for plan in self._plans.values() for digest in plan.kept
        }
        for name in self._disk.list(self._layout.incoming):
            path = f"{self._layout.incoming}/{name}"
            if path not in wanted:
                # Left by a transfer that nobody will continue; its space is counted as free.
                remove_tree(self._disk, path)

    def _end_step(self, name: str) -> None:
        now_ms = self._host.clock.boot_ms()
        self._steps.append(Step(name=name, took_ms=now_ms - self._step_ms, limit_ms=None))
        self._step_ms = now_ms
