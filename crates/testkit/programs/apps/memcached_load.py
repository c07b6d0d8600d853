"""A load client for memcached: sets values of many sizes over several connections, reads them back and compares.

usage: memcached_load.py PORT KEYS ROUNDS
"""
import hashlib
import socket
import sys
import threading


def value_of(key: str, size: int) -> bytes:
    seed = hashlib.sha256(key.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def worker(port: int, number: int, keys: int, rounds: int, failures: list) -> None:
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection.makefile("rb")
            items = {f"k{number}-{i}": 1 + i * i % 40000 for i in range(keys)}
            for key, size in items.items():
                value = value_of(key, size)
                connection.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), size, value))
                answer = stream.readline()
                assert answer == b"STORED\r\n", answer
            for _ in range(rounds):
                for key, size in items.items():
                    connection.sendall(b"get %s\r\n" % key.encode())
                    head = stream.readline()
                    assert head == b"VALUE %s 0 %d\r\n" % (key.encode(), size), head
                    value = stream.read(size + 2)
                    assert value == value_of(key, size) + b"\r\n", key
                    assert stream.readline() == b"END\r\n"
    except Exception as failure:
        failures.append(f"connection {number}: {failure!r}")


def main() -> None:
    port, keys, rounds = map(int, sys.argv[1:])
    failures: list = []
    threads = [threading.Thread(target=worker, args=(port, n, keys, rounds, failures)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"ok {len(threads) * keys * (rounds + 1)} requests")


main()
