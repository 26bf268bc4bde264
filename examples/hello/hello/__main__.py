"""Start the service: `python -m hello SETTINGS`."""

import sys
from pathlib import Path

import uvicorn

from hello.app import make_app, read_settings


def main() -> None:
    """Serve on loopback until told to stop."""
    settings = read_settings(Path(sys.argv[1]))
    uvicorn.run(
        make_app(settings),
        host="127.0.0.1",
        port=settings.port,
        http="httptools",
        loop="asyncio",
        access_log=False,
    )


if __name__ == "__main__":
    main()
