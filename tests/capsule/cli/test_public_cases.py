"""What went wrong for users of other tools' commands, each by its symptom."""

import re

import click
import pytest

from capsule.cli import program
from capsule.payload import open_payload
from capsule_installer.cli import program as host_program
from support import documents
from support.capsules import write_capsule
from support.deliveries import Receiver, make_capsule
from support.failures import fails_with
from support.forgery import Forgery

LOOSENING = re.compile(
    r"--.*(insecure|unsafe|verif|skip|if-possible|ignore|allow|untrusted|unsigned|force|no-check)"
)

# Named like such a switch, and none: they loosen no check of what is genuine.
OTHER = {
    "trust revise --allow",  # names a deliberate downgrade in a policy that owners then sign
    "rollout plan --allow-outage",  # a fleet of one has nobody who serves meanwhile
    "rollout start --allow-outage",
}


def spellings(command, words=()):
    """Yield every command with every spelling of its options."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from spellings(command.get_command(context, name), (*words, name))
    for parameter in command.params:
        for spelling in (*parameter.opts, *parameter.secondary_opts):
            yield " ".join([*words, spelling])


# --- 42: "verify if possible" swallows failures, and one verb ignores the key ---------------------
@pytest.mark.parametrize("edge", [program, host_program])
def test_no_command_has_a_switch_that_turns_verification_off(edge):
    every = list(spellings(edge))
    assert len(every) > 10, "the search itself found too little"
    assert [text for text in every if LOOSENING.search(text) and text not in OTHER] == []


@pytest.mark.parametrize(
    ("signer", "error_id"),
    [
        (None, "signature-missing"),
        (documents.STRANGER_KEY, "key-unknown"),
        (documents.ROUTE_KEY, "authority-denied"),
    ],
)
def test_every_verb_refuses_the_same_capsule_for_the_same_reason(tmp_path, signer, error_id):
    folder = tmp_path / "web.capsule"
    write_capsule(folder, signers=() if signer is None else (signer,))
    # `stage` and `install` open a capsule through this; `verify` has tests of its own.
    with fails_with(error_id):
        open_payload(folder, documents.make_policy())
    root = tmp_path / "host"
    root.mkdir()
    receiver = Receiver(str(root))
    receiver.enrol()
    with fails_with(error_id):
        receiver.receive(make_capsule(signers=() if signer is None else (signer,)))
    assert receiver.records("want") == []


# --- 46: an error that does not say which side refused, by which rule -----------------------------
def test_a_refused_signature_is_told_with_the_key_that_made_it(tmp_path):
    folder = tmp_path / "web.capsule"
    write_capsule(folder)
    Forgery(folder).sign(documents.STRANGER_KEY)
    with fails_with("key-unknown") as caught:
        open_payload(folder, documents.make_policy())
    assert documents.STRANGER_KEY.public.keyid in str(caught.value)
