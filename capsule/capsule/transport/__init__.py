"""Ways to run one program on a host: bytes in, bytes out, an exit code, and deadlines."""
