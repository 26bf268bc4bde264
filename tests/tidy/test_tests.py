"""Every test can fail, says what it proves, and replaces none of our own code."""

import ast
import re

from support.sources import functions, imported_names, modules_of_tests

CHECKS = {"raises", "fail", "warns", "golden"}
# Our own checks raise: to call one is to expect that it does not.
CHECK = re.compile(r"(check|verify|require|assert)_")


def called(function):
    """Yield the last name of everything that a function calls or passes on."""
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def checkers():
    """Return the names of functions that check something, themselves or through another."""
    everything = [f for module in modules_of_tests() for f in functions(module)]
    known = set(CHECKS)
    known |= {
        f.name for f in everything if any(isinstance(n, ast.Assert) for n in ast.walk(f.node))
    }
    while True:
        more = {f.name for f in everything if f.name not in known and known & set(called(f))}
        if not more:
            return known
        known |= more


def collected():
    """Return every function that pytest takes for a test."""
    return [
        function
        for module in modules_of_tests()
        if module.name.rpartition("/")[2].startswith("test_")
        for function in functions(module)
        if function.name.startswith("test_")
    ]


def test_every_test_can_fail():
    known = checkers()
    harmless = [
        f.where
        for f in collected()
        if not any(isinstance(node, ast.Assert) for node in ast.walk(f.node))
        and not known & set(called(f))
        and not any(CHECK.match(name) for name in called(f))
    ]
    assert harmless == []


def test_the_name_of_a_test_is_a_sentence():
    short = [f.where for f in collected() if len(f.name.split("_")) < 4]
    assert short == []


def test_no_test_replaces_our_own_code():
    mocks = [
        f"{module.name}:{line}"
        for module in modules_of_tests()
        for line, name in imported_names(module)
        if name in {"mock", "pytest_mock"}
    ]
    mocks += [
        f"{module.name}:{node.lineno}"
        for module in modules_of_tests()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "unittest"
    ]
    assert mocks == []
