"""multiprocessing.connection over AF_INET with forked workers on both ends.

The server forks one process per connection and closes its own copy (accept, fork, close); the client's connections live in
forked workers too. Objects travel pickled and signed.

usage: mp_connection.py server PORT CLIENTS | client PORT WORKERS ROUNDS
"""
import multiprocessing
import sys
from multiprocessing.connection import Client, Connection, Listener

KEY = b"ropeway"
fork = multiprocessing.get_context("fork")


def answer(connection: Connection) -> None:
    with connection:
        while True:
            try:
                numbers = connection.recv()
            except EOFError:
                return
            connection.send((len(numbers), sum(numbers), numbers[::-1]))


def serve(port: int, clients: int) -> None:
    children = []
    with Listener(("127.0.0.1", port), "AF_INET", backlog=16, authkey=KEY) as listener:
        for _ in range(clients):
            connection = listener.accept()
            child = fork.Process(target=answer, args=(connection,))
            child.start()
            connection.close()
            children.append(child)
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode


def worker(port: int, number: int, rounds: int) -> None:
    with Client(("127.0.0.1", port), "AF_INET", authkey=KEY) as connection:
        for turn in range(rounds):
            numbers = list(range(number, number + 10 + turn * 13 % 5000))
            connection.send(numbers)
            assert connection.recv() == (len(numbers), sum(numbers), numbers[::-1]), turn


def load(port: int, workers: int, rounds: int) -> None:
    children = [fork.Process(target=worker, args=(port, n, rounds)) for n in range(workers)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert all(child.exitcode == 0 for child in children), [child.exitcode for child in children]
    print(f"ok {workers * rounds} objects")


if sys.argv[1] == "server":
    serve(*map(int, sys.argv[2:]))
else:
    load(*map(int, sys.argv[2:]))
