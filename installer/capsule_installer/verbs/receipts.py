"""List and verify the host's own chain of receipts."""

import click

from capsule_installer.host.host import Host
from capsule_installer.host.identity import require_node_key
from capsule_installer.host.receipts import ReceiptChain, verify_chain
from capsule_manifest.errors import ExitCode
from capsule_manifest.keys import b64encode

__all__ = ["command"]


@click.command(name="receipts", epilog="Example: capsule receipts --json")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records, one a receipt.")
@click.pass_obj
def command(host: Host, *, as_json: bool) -> int:
    """Verify every link and signature, then list all receipts, oldest first.

    Records come before the verdict: a controller finds out what is wrong with a broken chain.
    """
    signer = require_node_key(host.disk, host.layout)
    chain = ReceiptChain(host.disk, host.layout, signer)
    if as_json:
        for raw in chain.raw():
            host.reporter.record("receipt", {"receipt": b64encode(raw)})
    receipts = verify_chain([item.envelope for item in chain.read_all()], signer.public)
    if as_json:
        return int(ExitCode.DONE)
    for receipt in receipts:
        host.reporter.text(
            f"{receipt.sequence} {receipt.kind} {receipt.result} "
            f"{receipt.source} -> {receipt.target} {receipt.op_id} {receipt.reason}".rstrip()
        )
    host.reporter.text(f"{len(receipts)} receipts, the chain is whole")
    return int(ExitCode.DONE)
