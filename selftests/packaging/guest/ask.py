"""A socket's algorithm: `ask.py set NAME`, `ask.py get ADDRESS`, `ask.py locked ADDRESS NAME`."""

import socket
import sys


def connect(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    probe = socket.socket(family)
    probe.setblocking(False)
    probe.connect_ex((address, 9))
    return probe


def main(verb, *words):
    if verb == "get":
        name = connect(words[0]).getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        print(name.rstrip(b"\0").decode())
        return 0
    probe = socket.socket() if verb == "set" else connect(words[0])
    try:
        probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, words[-1].encode())
    except OSError as error:
        print(f"errno {error.errno} {error.strerror}")
        return 1
    print("done")
    return 0


sys.exit(main(*sys.argv[1:]))
