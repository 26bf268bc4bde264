"""One epoch in production: plan, ledger, links and driver put together.

The fence of the ledger's lease is the fence of every order; it is kept above what any host has seen
under this controller's earlier commands, and the controller's folder follows it, so that staging in
between does not shut the epoch out.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from capsule.fleet_work import exit_code
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.lane.driver import Decision, Driver, Patience
from capsule.lane.events import Event
from capsule.lane.plan import RolloutPlan
from capsule.lane.ports import Dispatch
from capsule.lane.proposals import result_of
from capsule.ledger.store import SqlLedger
from capsule.payload import Payload
from capsule.rollout.decisions import Inbox, Wish
from capsule.rollout.dispatch import LedgerDispatch
from capsule.rollout.evidence import Ordered
from capsule.rollout.hooks import Hook, HookDispatch
from capsule.rollout.link import NodeJob, NodeLink, NodeWatch
from capsule.rollout.links import Links
from capsule.rollout.shell import BootClock, Interrupts, Mailbox, run_driver
from capsule.rollout.told import ToldLedger
from capsule.session import HostSession
from capsule.transport.base import Transport
from capsule_manifest.errors import CapsuleError, ExitCode, Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.route import Endpoint

__all__ = ["EpochRun", "EpochWatch", "epoch_folder", "holder_name", "scope_of"]


class EpochWatch(NodeWatch, Protocol):
    """Be told how an epoch goes. `event` and `turned` come from the epoch's own thread."""

    def event(self, seq: int, event: Event) -> None:
        """Hear of an event that is durable."""
        ...

    def refused(self, wish: Wish, error: CapsuleError) -> None:
        """Hear of a decision that could not be carried out."""
        ...

    def turned(self, driver: Driver) -> None:
        """Look at the driver after a turn of its loop."""
        ...

    def codes(self) -> tuple[ExitCode, ...]:
        """Return the exit codes of the troubles that were heard of."""
        ...


def holder_name() -> str:
    """Return how this controller signs its lease: machine and process, for people."""
    return f"{socket.gethostname()}/{os.getpid()}"


def scope_of(product: str) -> str:
    """Return the ledger's scope of a product: one controller at a time."""
    return f"product {product}"


def epoch_folder(home: ProductHome, epoch: str) -> Path:
    """Return where the controller keeps what belongs to one epoch and decides nothing."""
    return home.folder / "rollouts" / epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRun:
    """Run one epoch. The route, the capsule and the plan name each other."""

    home: ProductHome
    ledger: SqlLedger
    plan: RolloutPlan
    route: FrozenRoute
    payload: Payload
    controller: Signer
    connect: Callable[[Endpoint, str], Transport]
    watch: EpochWatch
    interrupts: Interrupts
    patience: Patience
    hook: Hook | None = None

    def start(self, highest_fence: int) -> ExitCode:
        """Start the epoch and see it to its end, its parking, or a detachment.

        Raises:
            CapsuleError: those of `Driver.start`; `route-mismatch`.
        """
        self.ledger.add_nodes(sorted(self.route.route.nodes))
        return self._run(lambda driver: driver.start(), highest_fence)

    def adopt(self, *, takeover: bool, decision: Decision | None) -> ExitCode:
        """Take the epoch over and go on.

        Raises:
            CapsuleError: those of `Driver.adopt`; `route-mismatch`.
        """
        return self._run(lambda driver: driver.adopt(takeover=takeover, decision=decision), 0)

    def _run(self, begin: Callable[[Driver], None], highest_fence: int) -> ExitCode:
        self._check()
        self.ledger.fence_floor = max(self.home.fence(), highest_fence) + 1
        mailbox = Mailbox()
        links = Links(self._link, hear=mailbox.hear)
        dispatch = self._dispatch(mailbox, lambda node: driver.state.members[node].taken_serving)
        clock = BootClock()
        driver = Driver(
            self.plan,
            ledger=ToldLedger(self.ledger, self.watch.event),
            hosts=links,
            dispatch=dispatch,
            clock=clock,
            scope=scope_of(self.route.route.product),
            holder=holder_name(),
            patience=self.patience,
        )
        try:
            with self.interrupts.counted():
                begin(driver)
                if not driver.is_over and driver.fence > self.home.fence():
                    self.home.raise_fence(driver.fence - 1)
                ended = run_driver(
                    driver,
                    mailbox=mailbox,
                    inbox=Inbox(folder=epoch_folder(self.home, self.plan.epoch) / "inbox"),
                    interrupts=self.interrupts,
                    clock=clock,
                    refused=self.watch.refused,
                    turned=lambda: self.watch.turned(driver),
                )
        finally:
            links.end()
        self.watch.turned(driver)
        # A host that tells its past differently weighs more than how the epoch went.
        return exit_code([*self.watch.codes(), _code(driver, ended=ended)])

    def _dispatch(self, mailbox: Mailbox, serving: Callable[[str], bool]) -> Dispatch:
        if self.hook is None:
            return LedgerDispatch(hear=mailbox.hear, serving=serving)
        facts = {"epoch": self.plan.epoch, "route": self.plan.route, "capsule": self.plan.capsule}
        return HookDispatch(self.hook, facts=facts, hear=mailbox.hear, serving=serving)

    def _check(self) -> None:
        if (self.plan.route, self.plan.capsule) != (self.route.digest, self.payload.capsule):
            raise Refused(
                "route-mismatch",
                "the epoch was planned under another route or of another capsule",
                expected=f"{self.plan.capsule} under {self.plan.route}",
                got=f"{self.payload.capsule} under {self.route.digest}",
                where=self.plan.epoch,
            )
        named = {key.keyid for key in self.route.route.controllers}
        if self.controller.public.keyid not in named:
            raise Refused(
                "authority-denied",
                "the route does not name this controller",
                expected=", ".join(sorted(key.short for key in self.route.route.controllers)),
                got=self.controller.public.short,
                where=self.plan.epoch,
            )

    def _link(self, node: str) -> NodeLink:
        entry = self.route.route.nodes[node]
        session = HostSession(self.connect(entry.endpoint, node), node=node)
        key = self._key(session, entry.node_key)
        selected = self.payload.release.selected(entry.role, entry.platform)
        units = frozenset(
            unit.name
            for component in selected
            for unit in component.units
            if unit.name.endswith(".service")
        )

        def ordered(op_id: str) -> Ordered:
            return Ordered(
                node=node,
                op_id=op_id,
                key=key,
                capsule=self.payload.capsule,
                generation=self.payload.generation,
                route=self.route.digest,
                commit=self.payload.release.source.commit,
                units=units,
            )

        job = NodeJob(
            ordered=ordered,
            release_counter=self.payload.release.release_counter,
            epoch=self.plan.epoch,
            guard_floor=self.route.route.guard_floor(node),
            guard_policy=self.route.route.guard_policy(node),
            d1_ms=self.plan.budget.d1_ms,
            d2_ms=self.plan.budget.d2_ms,
        )
        return NodeLink(session, job, controller=self.controller, home=self.home, watch=self.watch)

    def _key(self, session: HostSession, named: str | None) -> PublicKey:
        """Return the node's key: pinned at first contact, or as another controller's route names.

        Raises:
            Refused: `node-key-changed`; and what a hello raises.
        """
        key = self.home.node_key(session.node)
        if key is None and named is not None:
            said = session.hello()
            if said.node == session.node and said.node_key and said.node_key.keyid == named:
                key = said.node_key
                self.home.pin_node(session.node, key)
        if key is None or named not in {None, key.keyid}:
            raise Refused(
                "node-key-changed",
                "the host has another node key than the route names",
                expected=named or "a key from first contact",
                got=key.keyid if key else "another or none",
                where=session.node,
            )
        return key


def _code(driver: Driver, *, ended: bool) -> ExitCode:
    if driver.is_fenced:
        return ExitCode.FENCED
    if not ended:
        return ExitCode.INTERRUPTED
    return result_of(driver.state)
