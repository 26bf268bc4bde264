"""One host, verb by verb: argument lists out, records in, errors as values.

A session adds to a transport what the wire means: which verb answers which records, that an error
record is an error, and that a program that ends without its answer has failed. It decides nothing
about trust and retries nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from capsule.host_records import Hello, HostRecord, host_error, read_hello
from capsule.transport.base import (
    EXIT_NOT_FOUND,
    QUICK,
    Channel,
    Limits,
    Transport,
    host_program,
)
from capsule_manifest.canonical import JsonValue, encode
from capsule_manifest.errors import CapsuleError, ExitCode, Failed, Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import PublicKey, b64decode, b64encode, public_key
from capsule_manifest.survey import Survey, decode_survey
from capsule_manifest.wire import RecordReader

__all__ = ["Dialogue", "HostSession"]

_NOISE_SHOWN: Final = 300


class Dialogue:
    """Records of one running verb, in order, while more may be sent."""

    def __init__(self, channel: Channel, *, node: str, verb: str) -> None:
        self.channel = channel
        self._node = node
        self._verb = verb
        self._reader = RecordReader()
        self._pending: list[HostRecord] = []
        self._ended = False

    def ready(self) -> list[HostRecord]:
        """Return the records that came already, without waiting.

        Raises:
            CapsuleError: what the host reported; `wire-malformed`.
        """
        self._feed(self.channel.take())
        records, self._pending = self._pending, []
        return [self._checked(record) for record in records]

    def next(self) -> HostRecord | None:
        """Wait for the next record; None when the verb ended well.

        Raises:
            CapsuleError: what the host reported; `host-program-missing`, `host-verb-unknown`,
                `host-program-failed` when it ended badly without saying why; `transport-deadline`,
                `wire-malformed`.
        """
        while not self._pending:
            data = self.channel.read()
            if not data:
                self._check_end()
                return None
            self._feed(data)
        return self._checked(self._pending.pop(0))

    def expect(self, name: str) -> HostRecord:
        """Wait for the record called `name`, the only one that may come now.

        Raises:
            CapsuleError: as `next`; `wire-malformed` for another record or none.
        """
        record = self.next()
        if record is None or record.get("record") != name:
            raise Refused(
                "wire-malformed",
                f"a host answered {self._verb} with something else",
                expected=f"a record {name}",
                got="nothing" if record is None else f"a record {record.get('record')}",
                where=self._node,
            )
        return record

    def finish(self) -> None:
        """Wait for the end, at which nothing more may be said.

        Raises:
            CapsuleError: as `next`; `wire-malformed` for another record.
        """
        record = self.next()
        if record is not None:
            raise Refused(
                "wire-malformed",
                f"a host says more than {self._verb} answers",
                expected="the end",
                got=f"a record {record.get('record')}",
                where=self._node,
            )

    def _feed(self, data: bytes) -> None:
        self._pending.extend(self._reader.feed(data))

    def _checked(self, record: HostRecord) -> HostRecord:
        if record.get("record") == "error":
            raise host_error(record, self._node)
        return record

    def _check_end(self) -> None:
        ended = self.channel.wait()
        if ended.exit_code == 0:
            return
        said = (ended.stderr_tail or self._reader.noise.decode("utf-8", errors="replace")).strip()
        if ended.exit_code == EXIT_NOT_FOUND:
            raise Failed(
                "host-program-missing", "the host has no program", got=said, where=self._node
            )
        if ended.exit_code == ExitCode.USAGE:
            # The words are ours, so it is not they that are wrong.
            raise Failed(
                "host-verb-unknown",
                "the host's program is older than this controller and doesn't know its question",
                expected=f"the verb {self._verb}",
                got=said[-_NOISE_SHOWN:],
                where=self._node,
            )
        raise Failed(
            "host-program-failed",
            f"the host's program ended without an answer to {self._verb}",
            expected="a record",
            got=f"exit code {ended.exit_code}; {said[-_NOISE_SHOWN:]}",
            where=self._node,
            retryable=True,
        )


class HostSession:
    """Verbs of one host's program over one transport."""

    def __init__(self, transport: Transport, *, node: str) -> None:
        self.transport = transport
        self.node = node

    @contextmanager
    def dialogue(self, verb: str, *arguments: str, limits: Limits = QUICK) -> Iterator[Dialogue]:
        """Run one verb. Raises: `host-unreachable`, and what the block raises."""
        argv = [host_program(self.transport), verb, *arguments]
        with self.transport.open(argv, limits=limits) as channel:
            yield Dialogue(channel, node=self.node, verb=verb)

    def ask(
        self,
        verb: str,
        *arguments: str,
        answer: str,
        stdin: bytes = b"",
        limits: Limits = QUICK,
    ) -> HostRecord:
        """Run a verb that takes all its input first and answers with one record.

        Raises:
            CapsuleError: as `Dialogue.expect`.
        """
        with self.dialogue(verb, *arguments, limits=limits) as dialogue:
            dialogue.channel.write(stdin)
            dialogue.channel.end_input()
            record = dialogue.expect(answer)
            # The program says its last word before its last effect; leaving now would end it.
            dialogue.finish()
            return record

    def hello(self) -> Hello:
        """Ask the host who and how it is. Raises: as `ask`, and as `read_hello`."""
        return read_hello(self.ask("hello", answer="hello"), self.node)

    def survey(self) -> Survey:
        """Have the host say what it is and runs, in one answer that changes nothing there.

        Raises: as `ask`, and as `decode_survey`.
        """
        record = self.ask("survey", answer="survey")
        return decode_survey(encode(record.get("survey")), where=f"survey of {self.node}")

    def enrol(self, *, policy: bytes, product: str) -> tuple[PublicKey, bytes]:
        """Give the host its name and first policy; return its key and its signed receipt.

        Repeating it changes nothing. Raises: as `ask`; `enrolment-differs`.
        """
        request: dict[str, JsonValue] = {
            "node": self.node,
            "policy": b64encode(policy),
            "product": product,
        }
        item = Object(
            self.ask("enrol", answer="enrolled", stdin=encode(request)), f"answer of {self.node}"
        )
        key = public_key(b64decode(item.text("node_key"), item.where), item.where)
        return key, b64decode(item.text("receipt"), item.where)

    def update_policy(self, update: bytes) -> tuple[bytes, int]:
        """Offer signed policies; return the receipt and the version that holds. Raises: as `ask`.

        A host that has the newest one already changes nothing.
        """
        record = self.ask("trust", "update", answer="policy-updated", stdin=update)
        item = Object(record, f"answer of {self.node}")
        return b64decode(item.text("receipt"), item.where), item.integer("version")

    def receipts(self) -> Sequence[bytes]:
        """Return all signed receipts that the host keeps, oldest first. Raises: as `ask`."""
        return list(self._receipts())

    def told_receipts(self) -> tuple[Sequence[bytes], CapsuleError | None]:
        """Return what the host keeps as its receipts, with its own word that they are no chain.

        Where they differ from the copies is then found one by one. Raises: as `ask`.
        """
        found: list[bytes] = []
        try:
            found.extend(self._receipts())
        except CapsuleError as error:
            if error.exit_code is not ExitCode.INTEGRITY:
                raise
            return found, error
        return found, None

    def _receipts(self) -> Iterator[bytes]:
        with self.dialogue("receipts", "--json") as dialogue:
            dialogue.channel.end_input()
            while (record := dialogue.next()) is not None:
                if record.get("record") == "receipt":
                    item = Object(record, f"receipt of {self.node}")
                    yield b64decode(item.text("receipt"), item.where)
