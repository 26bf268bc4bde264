"""Ask every node how it is, at once; a node that does not answer is a result too."""

from collections.abc import Callable, Iterable, Mapping

from capsule.fleet_work import for_each_node
from capsule.host_records import Hello
from capsule.session import HostSession
from capsule.transport.base import Transport
from capsule_manifest.errors import CapsuleError, ExitCode
from capsule_manifest.route import Endpoint

__all__ = ["ask_hosts", "highest_fence", "node_state", "state_code"]

Answer = Hello | CapsuleError


def ask_hosts(
    endpoints: Mapping[str, Endpoint], connect: Callable[[Endpoint, str], Transport]
) -> Mapping[str, Answer]:
    """Return each node's hello, or why there is none."""

    def ask(node: str) -> Hello:
        return HostSession(connect(endpoints[node], node), node=node).hello()

    return for_each_node(endpoints, ask)


def highest_fence(answers: Iterable[Answer]) -> int:
    """Return the highest fence that any host has seen; 0 if none has answered."""
    return max((answer.fence for answer in answers if isinstance(answer, Hello)), default=0)


def node_state(node: str, answer: Answer) -> str:
    """Return one word, or two, for how a node is."""
    if isinstance(answer, CapsuleError):
        return "no program" if answer.error_id == "host-program-missing" else "unknown"
    if answer.node is None:
        return "not enrolled"
    if answer.node != node:
        return "foreign"
    if answer.open_op is not None:
        return "installing"
    if answer.hold:
        return "held"
    return "absent" if answer.current == "absent" else "installed"


def state_code(state: str) -> ExitCode:
    """Return what a state means for the exit code of a question about it."""
    if state in {"unknown", "foreign"}:
        return ExitCode.NOT_SERVING
    return ExitCode.NODES_HELD if state == "held" else ExitCode.DONE
