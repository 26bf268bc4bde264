"""One op from its accepted order to its outcome, and the way back."""
