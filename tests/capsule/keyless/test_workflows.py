"""The page about signing in CI: its commands are ours, its workflows ask for what signing needs."""

import re
import shlex

import click
import pytest

from capsule.cli import COMMANDS, program
from capsule_manifest.error_table import ROWS
from support.sources import ROOT

PAGE = (ROOT / "docs" / "how-to" / "sign-in-ci.md").read_text()
LINES = re.findall(
    r"^\s*(?:- |- run: |run: )?(capsule [a-z].*)$", PAGE.replace("\\\n", " "), re.MULTILINE
)
GITHUB, GITLAB = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("line", sorted(set(LINES)))
def test_a_command_of_the_page_has_options_that_exist(line):
    _, name, *arguments = shlex.split(line)
    assert name in COMMANDS
    command = program.get_command(None, name)
    if isinstance(command, click.Group):
        command = command.get_command(None, arguments.pop(0))
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in arguments if word.startswith("-")}
    assert used <= known


def test_both_workflows_build_sign_and_verify_in_this_order():
    assert len(LINES) >= 8, "the search itself found too little"
    for workflow in (GITHUB, GITLAB):
        steps = [line.split()[1] for line in LINES if line in workflow]
        assert steps[:3] == ["build", "sign", "verify"]
        assert "--keyless --policy" in workflow


def test_each_workflow_asks_for_an_identity_and_for_no_more():
    assert "permissions: {}" in GITHUB
    granted = re.search(r"    permissions:\n((?:      .*\n)+?)    steps", GITHUB).group(1)
    assert [line.split(":")[0].strip() for line in granted.splitlines()] == ["contents", "id-token"]
    assert "contents: read" in granted
    assert "pull_request" not in GITHUB
    assert re.search(r"id_tokens:\n +SIGSTORE_ID_TOKEN:\n +aud: sigstore\n", GITLAB)


def test_every_refusal_of_the_page_exists():
    named = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert len(named) >= 8
    assert set(named) <= set(ROWS)
