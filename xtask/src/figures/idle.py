"""Many connections that are used and then idle: `idle.py server|client PORT CONNECTIONS`."""
import select
import socket
import sys

MESSAGE = b"x" * 64
# Each connection is used before it idles, often enough to be worth an acceleration: so many times in each of so many turns.
USES, TURNS = 10, 8


def receive(connection):
    left = len(MESSAGE)
    while left:
        piece = connection.recv(left)
        if not piece:
            raise EOFError("the other end closed")
        left -= len(piece)


def server(port, number):
    listener = socket.create_server(("127.0.0.1", port), backlog=number)
    waiting = select.epoll()
    waiting.register(listener, select.EPOLLIN)
    connections, seen = {}, 0
    while seen < number or connections:
        for descriptor, _ in waiting.poll():
            if descriptor == listener.fileno():
                connection, _ = listener.accept()
                connections[connection.fileno()] = connection
                waiting.register(connection, select.EPOLLIN)
                seen += 1
                continue
            piece = connections[descriptor].recv(4096)
            if piece:
                connections[descriptor].sendall(piece)
            else:
                waiting.unregister(descriptor)
                connections.pop(descriptor).close()


def client(port, number):
    print("ready", flush=True)
    sys.stdin.readline()
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
    for _ in range(TURNS):
        for connection in connections:
            for _ in range(USES):
                connection.sendall(MESSAGE)
                receive(connection)
    waiting = select.epoll()
    for connection in connections:
        waiting.register(connection, select.EPOLLIN)
    waiting.register(sys.stdin, select.EPOLLIN)
    print("idle", flush=True)
    ready = [descriptor for descriptor, _ in waiting.poll()]
    if ready != [sys.stdin.fileno()]:
        sys.exit(f"an idle connection became ready: {ready}")
    for connection in connections:
        connection.sendall(MESSAGE)
        receive(connection)


{"server": server, "client": client}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
