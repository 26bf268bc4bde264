"""Run `capsule verify` where asking for a network ends the process at once."""

import os
import sys

REFUSED = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def refuse(event, arguments):
    # A bind stays allowed: the HTTP client asks the kernel in this way whether it knows IPv6.
    if event in REFUSED:
        os.write(2, f"asked for a network: {event} {arguments!r}\n".encode())
        os._exit(99)


if __name__ == "__main__":
    sys.addaudithook(refuse)
    from capsule.__main__ import main

    sys.exit(main(sys.argv[1:]))
