"""The chain: linked, published once, recorded without free space, never blocked by damage."""

from dataclasses import replace
from pathlib import Path

import pytest

from capsule_installer.host.receipts import ReceiptChain, verify_chain
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.errors import Failed
from capsule_manifest.records import RECEIPT_TYPE, encode_receipt
from support import documents
from support.deliveries import Receiver
from support.failures import fails_with
from support.model_disk import ModelDisk, survivors


def build(sequence, previous):
    return replace(documents.make_receipt(), sequence=sequence, previous=previous)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    made = Receiver(str(tmp_path))
    made.host.prepare()
    return made


def chain_of(receiver: Receiver) -> ReceiptChain:
    return ReceiptChain(receiver.disk, receiver.layout, documents.NODE_KEY)


def test_receipts_are_a_chain(receiver):
    chain = chain_of(receiver)
    envelopes = [chain.append(build) for _ in range(3)]
    receipts = verify_chain(envelopes, documents.NODE_KEY.public)
    assert [receipt.sequence for receipt in receipts] == [1, 2, 3]
    assert receipts[2].previous == envelopes[1].digest
    assert [item.envelope for item in chain.read_all()] == envelopes


@pytest.mark.parametrize("order", [[0, 2], [1], [0, 0], [0, 2, 1]])
def test_a_chain_with_a_gap_or_a_swap_is_refused(receiver, order):
    chain = chain_of(receiver)
    envelopes = [chain.append(build) for _ in range(3)]
    with fails_with("record-chain-broken"):
        verify_chain([envelopes[index] for index in order], documents.NODE_KEY.public)


def test_publishing_again_does_nothing_and_a_fork_is_refused(receiver):
    chain = chain_of(receiver)
    chain.append(build)
    signed = chain.sign(build)
    chain.publish(signed)
    chain.publish(signed)
    assert len(chain.read_all()) == 2
    fork = replace(documents.make_receipt(), sequence=2, previous=None, reason="fork")
    with fails_with("record-chain-broken"):
        payload = encode_receipt(replace(fork, previous="sha256:" + "0" * 64))
        chain.publish(sign(payload, payload_type=RECEIPT_TYPE, signer=documents.NODE_KEY))


@pytest.mark.parametrize("damage", [b"", b"{", b"not json at all"])
def test_a_damaged_last_receipt_is_set_aside_and_blocks_nothing(receiver, damage):
    chain = chain_of(receiver)
    chain.append(build)
    chain.append(build)
    path = Path(receiver.layout.receipts, "00000002.json")
    path.chmod(0o644)
    path.write_bytes(damage)
    envelope = chain.append(build)
    assert [item.receipt.sequence for item in chain.read_all()] == [1, 2]
    assert chain.read_all()[-1].envelope == envelope
    assert Path(receiver.layout.quarantine, "receipt-00000002.json").read_bytes() == damage


def test_a_receipt_under_anothers_name_is_refused(receiver):
    chain = chain_of(receiver)
    chain.append(build)
    folder = Path(receiver.layout.receipts)
    (folder / "00000009.json").write_bytes((folder / "00000001.json").read_bytes())
    with fails_with("record-chain-broken"):
        chain.read_all()


def test_the_newest_wanted_receipt_is_found(receiver):
    chain = chain_of(receiver)
    for _ in range(4):
        chain.append(build)
    found = chain.find_last(lambda receipt: receipt.sequence < 4, among=10)
    assert found is not None
    assert found.receipt.sequence == 3
    assert chain.find_last(lambda receipt: receipt.sequence == 1, among=2) is None
    assert chain.first().receipt.sequence == 1


class FullDisk(ModelDisk):
    """A disk without a free byte, which gets some back when a removal has become durable."""

    full = False
    spent = False

    def create(self, path, mode):
        if self.full:
            raise Failed("disk-full", "the disk is full", where=path)
        return super().create(path, mode)

    def unlink(self, path):
        super().unlink(path)
        self.spent = True

    def fsync_dir(self, path, why):
        super().fsync_dir(path, why)
        if self.spent and why not in self.skip:
            self.full = False


def test_a_receipt_is_recorded_on_a_full_disk():
    disk = FullDisk()
    disk.mkdir("/h", 0o755)
    receiver = Receiver("/h", disk=disk, uid=0)
    receiver.host.prepare()
    chain = chain_of(receiver)
    chain.append(build)
    disk.full = True
    chain.append(build)
    assert [item.receipt.sequence for item in chain.read_all()] == [1, 2]


def test_space_comes_back_only_when_the_spent_reserve_is_durably_gone():
    disk = FullDisk(skip={"spent reserve's name"})
    disk.mkdir("/h", 0o755)
    receiver = Receiver("/h", disk=disk, uid=0)
    receiver.host.prepare()
    chain = chain_of(receiver)
    chain.append(build)
    disk.full, disk.spent = True, False
    with fails_with("disk-full"):
        chain.append(build)


def test_on_a_full_disk_without_its_reserve_recording_fails():
    disk = FullDisk()
    disk.mkdir("/h", 0o755)
    receiver = Receiver("/h", disk=disk, uid=0)
    receiver.host.prepare()
    disk.full = True
    with fails_with("disk-full"):
        chain_of(receiver).append(build)


def test_a_receipt_over_a_damaged_one_survives_a_power_loss():
    disk = ModelDisk()
    disk.mkdir("/h", 0o755)
    receiver = Receiver("/h", disk=disk, uid=0)
    receiver.host.prepare()
    disk.create(f"{receiver.layout.receipts}/00000001.json", 0o644).close()
    disk.sync_filesystem("/", "test")
    written = encode_record(chain_of(receiver).append(build))
    for how, left in survivors(disk):
        assert left.read(f"{receiver.layout.receipts}/00000001.json", 10**6) == written, how
