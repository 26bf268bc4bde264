"""Look at a host's managed files, and have it set aside what somebody changed.

A host that was edited contradicts its release, so preflight keeps it out of a rollout. This is the
way on that keeps the edit: its bytes go into the host's quarantine, the release's file comes back,
and the host signs what it did.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from capsule.home import ProductHome
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule.session import HostSession
from capsule.stage import keep_receipts
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import PublicKey, Signer, b64decode

__all__ = ["NodeFiles", "node_files"]

_KIND = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """What a host says of its managed files: `same` or what differs, by their places.

    `kept` maps the place of a file that was set aside to where its bytes are now.
    """

    files: Mapping[str, str]
    kept: Mapping[str, str]
    put_back: tuple[str, ...]
    receipt: CheckedReceipt | None


def node_files(
    session: HostSession,
    *,
    home: ProductHome,
    key: PublicKey,
    controller: Signer,
    set_aside: bool,
    generation: str = "",
) -> NodeFiles:
    """Return the managed files of one host, or those that are new in `generation`.

    With `set_aside` the host keeps what differs elsewhere first, under this controller's fence; its
    receipt is copied.

    Raises:
        CapsuleError: what the host refuses; `receipt-refused`; what keeping the copy raises.
    """
    words = ["--json", *(["--generation", generation] if generation else [])]
    if set_aside:
        words += ["--set-aside", "--fence", str(home.fence())]
    said = Object(session.ask("files", *words, answer="files"), f"files of {session.node}")
    record = said.optional_text("receipt")
    receipt = None
    if record is not None:
        receipt = check_receipt(b64decode(record, said.where), node=session.node, key=key)
        if receipt.receipt.kind != _KIND:
            raise Refused(
                "receipt-refused", "a receipt speaks of something else than managed files",
                expected=_KIND, got=receipt.receipt.kind, where=session.node,
            )  # fmt: skip
        keep_receipts(session, home, receipt, key, controller)
    return NodeFiles(
        files=said.text_map("files"),
        kept=said.text_map("kept"),
        put_back=said.texts("put_back"),
        receipt=receipt,
    )
