"""The pages about trust: each command in them exists, with each of its options."""

import re
import shlex

import click
import pytest

from capsule.cli import COMMANDS, program
from capsule_manifest.error_table import ROWS
from support.sources import ROOT

HOW_TO = (ROOT / "docs" / "how-to" / "trust.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "policy.md").read_text()
LINES = sorted(set(re.findall(r"^(capsule [a-z].*)$", HOW_TO.replace("\\\n", " "), re.MULTILINE)))
OPTIONS = sorted(set(re.findall(r"`(--[a-z-]+)", HOW_TO)))


def command_of(words):
    """Return the command that a line names, and the words after its name."""
    command = program.get_command(None, words[1])
    if isinstance(command, click.Group):
        return command.get_command(None, words[2]), words[3:]
    return command, words[2:]


def options_of(command):
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_page_has_options_that_exist(line):
    words = shlex.split(line.split("#")[0].split("<")[0])
    assert words[1] in COMMANDS
    command, rest = command_of(words)
    assert {word for word in rest if word.startswith("-")} <= options_of(command)


def test_each_option_of_the_tables_is_one_of_a_trust_command():
    assert len(LINES) >= 8
    trust = program.get_command(None, "trust")
    known = set().union(*map(options_of, trust.commands.values()))
    known |= options_of(program.get_command(None, "stage"))
    assert set(OPTIONS) <= known
    assert len(OPTIONS) >= 8


def test_every_refusal_of_the_reference_exists_with_its_exit_code():
    rows = re.findall(r"^\| [^|`]+ \| ((?:`[a-z-]+`(?:, )?)+) \| (\d+)", REFERENCE, re.MULTILINE)
    assert len(rows) >= 20
    for ids, code in rows:
        for error_id in re.findall(r"`([a-z-]+)`", ids):
            assert int(ROWS[error_id][0]) == int(code), error_id
