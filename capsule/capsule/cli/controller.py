"""What the commands that work with hosts share: their options, and how nodes are told of."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from capsule.cli.output import Progress
from capsule.durable import read_bounded
from capsule_manifest.errors import CapsuleError, Refused

if TYPE_CHECKING:
    from capsule_manifest.policy import Policy

__all__ = [
    "NodeLines",
    "controller_key_option",
    "error_fields",
    "fleet_option",
    "home_option",
    "lane_options",
    "policy_option",
    "read_policy",
    "route_key_option",
]

_POLICY_BYTES_MAX: Final = 1024 * 1024

Function = TypeVar("Function", bound=Callable[..., object])

_FILE = click.Path(dir_okay=False, path_type=Path)


def fleet_option(function: Function) -> Function:
    """Add `--fleet`, the inventory."""
    return click.option(
        "--fleet",
        "fleet_path",
        type=_FILE,
        default=Path("fleet.toml"),
        show_default=True,
        help="The inventory.",
    )(function)


def policy_option(function: Function) -> Function:
    """Add `--policy`, the trust policy; it has no default, because it decides whom to trust."""
    return click.option(
        "--policy", "policy_path", type=_FILE, required=True, help="The trust policy."
    )(function)


def controller_key_option(function: Function) -> Function:
    """Add `--controller-key`."""
    return click.option(
        "--controller-key",
        "controller_key_path",
        type=_FILE,
        required=True,
        help="Key that signs orders; the route names it.",
    )(function)


def route_key_option(function: Function) -> Function:
    """Add `--route-key`."""
    return click.option(
        "--route-key",
        "route_key_path",
        type=_FILE,
        required=True,
        help="Key that signs the frozen route.",
    )(function)


def home_option(function: Function) -> Function:
    """Add `--home`, the controller's own folder."""
    return click.option(
        "--home",
        "home_path",
        type=click.Path(file_okay=False, path_type=Path),
        default=_default_home,
        show_default="$XDG_STATE_HOME/capsule",
        help="The controller's own folder.",
    )(function)


def _default_home() -> Path:
    from capsule.home import default_home

    return default_home()


def lane_options(function: Function) -> Function:
    """Add `--lane` and `--node`, of which one must be given."""
    function = click.option(
        "--node", "nodes", multiple=True, metavar="NODE", help="One node; may be repeated."
    )(function)
    return click.option("--lane", metavar="LANE", help="All nodes of a lane, or `all`.")(function)


def read_policy(path: Path) -> "Policy":
    """Read a trust policy from a file.

    Raises:
        Refused: `policy-invalid` when there is none; what `decode_policy` raises.
        Failed: `controller-disk`.
    """
    # Options are all that is needed to begin a command.
    from capsule_manifest.policy import decode_policy

    raw = read_bounded(path, _POLICY_BYTES_MAX)
    if raw is None:
        raise Refused("policy-invalid", "there is no trust policy", where=path)
    return decode_policy(raw, where=str(path))


def error_fields(error: CapsuleError) -> Mapping[str, object]:
    """Return an error as a field of a `--json` answer."""
    return error.as_record()


class NodeLines:
    """One line a change, from several threads, each beginning with its node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = Progress()

    def line(self, node: str, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._progress.line(f"{node}: {text}")

    def update(self, node: str, text: str) -> None:
        """Show what is being done for one node right now."""
        with self._lock:
            self._progress.update(f"{node}: {text}")

    def end(self) -> None:
        """Remove the moving line."""
        with self._lock:
            self._progress.end()
