"""`python -m capsule_installer`."""

import sys

from capsule_installer.cli import main

sys.exit(main())
