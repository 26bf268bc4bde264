"""A small web service that says which release answers."""

import os
import threading

RELEASE = "3.0.0"

# The defect: it answers at first, so only who watches for longer than two seconds sees it.
threading.Timer(2.0, os._exit, [1]).start()
