"""The controller's own folder: what one command learned that the next must know.

Per product: the fence, the node keys pinned at first contact, every route that was frozen, and
copies of all receipts. Nothing here is secret but the names of hosts; nothing here is needed to
*verify* a host's word except the pins.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capsule.durable import exclusive, make_folder, publish_once, read_bounded, replace_file
from capsule.freeze import FrozenRoute, freeze, freeze_and_sign
from capsule.names import LookUp, look_up
from capsule.receipts_store import ReceiptCopies
from capsule_manifest.canonical import DEFAULT_LIMITS, decode, encode
from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import Refused
from capsule_manifest.fields import root_object
from capsule_manifest.keys import PublicKey, Signer, b64decode, b64encode, public_key
from capsule_manifest.policy import Policy
from capsule_manifest.route import ROUTE_LIMITS
from capsule_manifest.trust_orders import verify_route

if TYPE_CHECKING:
    from capsule.inventory import Fleet

__all__ = ["ProductHome", "default_home", "freeze_fleet"]

_NODE_SCHEMA: Final = "capsule-node/1"
_FENCE_SCHEMA: Final = "capsule-fence/1"
_LATEST: Final = "latest"
_SMALL_BYTES_MAX: Final = 64 * 1024


def default_home() -> Path:
    """Return `$XDG_STATE_HOME/capsule`, or `~/.local/state/capsule`."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative value is to be ignored. Source: XDG Base Directory Specification 0.8.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "capsule"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductHome:
    """The part of the controller's folder that belongs to one product."""

    home: Path
    product: str

    @property
    def folder(self) -> Path:
        """Return the product's folder, which may not exist yet."""
        return self.home / "products" / self.product

    @property
    def ledger_path(self) -> Path:
        """Return where the product's ledger lies, unless PostgreSQL keeps it."""
        return self.folder / "ledger.sqlite"

    def fence(self) -> int:
        """Return the fence that this controller works under; the first use makes it 1.

        Raises:
            Refused: `document-invalid`.
            Failed: `controller-disk`, `controller-busy`.
        """
        raw = read_bounded(self._fence_path, _SMALL_BYTES_MAX)
        return self.raise_fence(0) if raw is None else _read_fence(raw, self._fence_path)

    def raise_fence(self, above: int) -> int:
        """Take over: make the fence larger than `above` and than it was, durably; return it.

        Raises:
            Refused: `document-invalid`.
            Failed: `controller-disk`, `controller-busy`.
        """
        with exclusive(self.folder / "lock"):
            raw = read_bounded(self._fence_path, _SMALL_BYTES_MAX)
            now = 0 if raw is None else _read_fence(raw, self._fence_path)
            fence = max(now, above) + 1
            replace_file(self._fence_path, encode({"schema": _FENCE_SCHEMA, "fence": fence}))
        return fence

    def node_key(self, node: str) -> PublicKey | None:
        """Return the key pinned for `node`, or None if it was never met.

        Raises:
            Refused: `document-invalid`, `key-malformed`.
        """
        path = self._node_path(node)
        raw = read_bounded(path, _SMALL_BYTES_MAX)
        if raw is None:
            return None
        document = root_object(
            decode(raw, limits=DEFAULT_LIMITS, where=str(path)), schema=_NODE_SCHEMA, name=str(path)
        )
        key = public_key(b64decode(document.text("node_key"), str(path)), str(path))
        document.end()
        return key

    def pin_node(self, node: str, key: PublicKey) -> None:
        """Remember the key of `node`; later calls check that it is still the same.

        Raises:
            Refused: `node-key-changed`.
            Failed: `controller-disk`.
        """
        path = self._node_path(node)
        make_folder(path.parent)
        data = encode({"schema": _NODE_SCHEMA, "node_key": b64encode(key.spki)})
        if publish_once(path, data):
            return
        known = self.node_key(node)
        if known != key:
            raise Refused(
                "node-key-changed",
                "a host has another node key than when it was first met",
                expected=f"key {known.short if known else 'none'}",
                got=f"key {key.short}",
                where=node,
            )

    def node_keys(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Return the ids of the pinned keys of those of `nodes` that were met."""
        found = {node: self.node_key(node) for node in nodes}
        return {node: key.keyid for node, key in found.items() if key is not None}

    def store_route(self, route: FrozenRoute) -> None:
        """Keep `route` for ever and make it the latest. Raises: `controller-disk`."""
        folder = self.folder / "routes"
        make_folder(folder)
        name = route.digest.removeprefix("sha256:")
        publish_once(folder / f"{name}.json", route.record)
        latest = folder / _LATEST
        if read_bounded(latest, _SMALL_BYTES_MAX) != name.encode():
            replace_file(latest, name.encode())

    def latest_route(self, policy: Policy) -> FrozenRoute:
        """Return the route that was frozen last, verified under `policy`.

        Raises:
            Refused: `route-not-frozen`, and what `verify_route` raises.
        """
        folder = self.folder / "routes"
        name = read_bounded(folder / _LATEST, _SMALL_BYTES_MAX)
        record = None
        if name is not None and name.isalnum():
            path = folder / f"{name.decode('ascii')}.json"
            record = read_bounded(path, ROUTE_LIMITS.size_bytes_max * 2)
        if record is None:
            raise Refused("route-not-frozen", "no route was frozen yet", where=folder)
        envelope = decode_record(record, where="the frozen route")
        return FrozenRoute(verified=verify_route(policy, envelope), record=record)

    def receipts(self, node: str, *, signer: Signer) -> ReceiptCopies:
        """Return the copies of one node's receipts; new ones are counter-signed by `signer`."""
        return ReceiptCopies(folder=self.folder / "receipts" / node, node=node, signer=signer)

    @property
    def _fence_path(self) -> Path:
        return self.folder / "fence.json"

    def _node_path(self, node: str) -> Path:
        return self.folder / "nodes" / f"{node}.json"


def freeze_fleet(
    home: ProductHome,
    fleet: "Fleet",
    *,
    policy: Policy,
    controllers: tuple[PublicKey, ...],
    signer: Signer,
    look_up: LookUp = look_up,
) -> FrozenRoute:
    """Freeze and sign the route of `fleet` with the node keys that are known, and keep it.

    Raises:
        Refused: as `freeze` and `freeze_and_sign`.
        Failed: as `freeze`; `controller-disk`.
    """
    route = freeze(
        fleet,
        policy=policy,
        controllers=controllers,
        node_keys=home.node_keys(tuple(fleet.nodes)),
        look_up=look_up,
    )
    frozen = freeze_and_sign(route, policy=policy, signer=signer)
    home.store_route(frozen)
    return frozen


def _read_fence(raw: bytes, path: Path) -> int:
    where = str(path)
    value = decode(raw, limits=DEFAULT_LIMITS, where=where)
    document = root_object(value, schema=_FENCE_SCHEMA, name=where)
    fence = document.integer("fence", least=1)
    document.end()
    return fence
