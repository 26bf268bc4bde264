"""Build a capsule: inputs are resolved from pins, then assembled, signed and written."""
