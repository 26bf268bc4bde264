"""Which folders of content some process of this host still uses, whatever started it.

A program keeps what it runs by more than its executable: by what it mapped, by files that it has
open, by its folder, by its command line, and by what its environment names and its children will
look for. Whatever shows one of them keeps the folder.

Source: proc(5).
"""

from collections.abc import Mapping

from capsule_installer.system.processes import Processes

__all__ = ["folders_in_use"]

_GENERATION = "CAPSULE_GENERATION"


def folders_in_use(processes: Processes, folders: Mapping[str, str]) -> set[str]:
    """Return the names of the folders that a process uses. `folders` maps names to whole paths.

    A process that this user can't read shows nothing; the host program runs as root.
    """
    used: set[str] = set()
    for pid in processes.all_pids():
        facts = processes.facts(pid)
        if facts is None:
            continue
        # Paths of the environment count too: a program finds its own files by them, later.
        seen = [f"{facts.cwd}/", *facts.arguments, *facts.files, *facts.environment.values()]
        seen += [f"{path}/" for path in processes.open_files(pid)]
        named = facts.environment.get(_GENERATION)
        used |= {
            name
            for name, folder in folders.items()
            if name == named or any(f"{folder}/" in text for text in seen)
        }
    return used
