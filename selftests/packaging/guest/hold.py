"""Holds algorithm j until it is killed: a listener, a connection (two sockets), an idle socket."""

import socket
import time

LISTENER = socket.socket()
LISTENER.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"j")
LISTENER.bind(("127.0.0.1", 5555))
LISTENER.listen()
CLIENT = socket.socket()
CLIENT.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"j")
CLIENT.connect(("127.0.0.1", 5555))
ACCEPTED = LISTENER.accept()[0]
IDLE = socket.socket()
IDLE.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"j")
print("ready", flush=True)
time.sleep(10_000)
