"""Length limits: what does not fit on two screens is not read as a whole."""

from support.sources import functions, modules, modules_of_tests

FUNCTION_LINES = 60
FUNCTION_LINES_MAX = 80
MODULE_LINES = 400
MODULE_LINES_MAX = 500


def test_no_function_is_longer_than_the_hard_limit():
    everything = [f for m in (*modules(), *modules_of_tests()) for f in functions(m)]
    too_long = [f"{f.where}: {f.lines}" for f in everything if f.lines > FUNCTION_LINES_MAX]
    assert too_long == []


def test_functions_above_the_limit_are_rare():
    everything = [f for m in modules() for f in functions(m)]
    long = [f"{f.where}: {f.lines}" for f in everything if f.lines > FUNCTION_LINES]
    assert len(long) <= len(everything) // 100, long


def test_no_module_is_longer_than_the_hard_limit():
    assert [f"{m.name}: {m.lines}" for m in modules() if m.lines > MODULE_LINES_MAX] == []


def test_modules_above_the_limit_are_rare():
    long = [f"{m.name}: {m.lines}" for m in modules() if m.lines > MODULE_LINES]
    assert len(long) <= len(modules()) // 10, long
