"""Start the host program from a runtime's folder, with nothing of this machine's Python around it.

Run by the launcher as `python -I -S launch.py …`: no user site, no site-packages, no environment
variable, no current folder on the path. What is imported is the standard library and what lies in
the runtime's `site` folder.
"""

import os
import sys

__all__: list[str] = []


def _main() -> int:
    # The runtime is compiled when it is staged; a start must never write into it.
    sys.dont_write_bytecode = True
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(site)

    match sys.argv[1:]:
        case ["--root", root, "survey"]:
            from capsule_installer.quick import answer

            return answer(root)
        case ["--root", root, "receive", "--hello"]:
            from capsule_installer.greet import answer as take

            return take(root)
    from capsule_installer.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
