"""Finds ports of this machine that nobody listens at."""
import random
import socket


def free_ports(count):
    """Returns the first of `count` consecutive ports. They are below those that the system assigns to connections, so
    that no connection takes one before the caller listens there."""
    while True:
        first = random.SystemRandom().randrange(17000, 32000 - count)
        listeners = [socket.socket() for _ in range(count)]
        try:
            for number, listener in enumerate(listeners):
                listener.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for listener in listeners:
                listener.close()


def free_port():
    return free_ports(1)
