"""Container images as inputs: read strictly, their layers uncompressed, the same for everyone."""
