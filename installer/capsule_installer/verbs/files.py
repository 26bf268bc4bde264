"""Show the managed files of this host, and set aside those that somebody changed."""

import click

from capsule_installer.host.host import Host
from capsule_installer.op.real import real_effects
from capsule_installer.op.set_aside import look_at_files, set_aside
from capsule_manifest.canonical import JsonValue
from capsule_manifest.envelope import encode_record
from capsule_manifest.errors import ExitCode
from capsule_manifest.keys import b64encode

__all__ = ["command"]


@click.command(name="files", epilog="Example: capsule files --set-aside")
@click.option("--generation", default="", help="Look at what is new in this staged generation.")
@click.option(
    "--set-aside",
    "does_set_aside",
    is_flag=True,
    help="Keep what differs in quarantine and put the release's files in place.",
)
@click.option("--fence", type=click.IntRange(min=0), default=0, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Answer in one framed record.")
@click.pass_obj
def command(host: Host, *, generation: str, does_set_aside: bool, fence: int, as_json: bool) -> int:
    """Show every managed file with what differs: bytes, mode, owner, kind, or that it is gone."""
    host.prepare()
    effects = real_effects(host.disk, host.layout)
    done = set_aside(effects, generation=generation, fence=fence) if does_set_aside else None
    states = look_at_files(effects, generation=generation)
    if as_json:
        receipt = None if done is None or done.receipt is None else done.receipt
        fields: dict[str, JsonValue] = {
            "files": {state.file.target: state.difference or "same" for state in states},
            "kept": {} if done is None else dict(done.kept),
            "put_back": [] if done is None else list(done.put_back),
            "receipt": None if receipt is None else b64encode(encode_record(receipt)),
        }
        host.reporter.record("files", fields)
        return int(ExitCode.DONE)
    for state in states:
        host.reporter.text(f"{state.file.target}: {state.difference or 'same'}")
    for target, path in ({} if done is None else done.kept).items():
        host.reporter.text(f"{target}: what was there is kept as {path}")
    return int(ExitCode.DONE)
