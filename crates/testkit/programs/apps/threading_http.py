"""ThreadingHTTPServer with keep-alive, and http.client from several threads.

The server answers a POST with the SHA-256 of its body, and GET /N with N bytes that the client can compute itself.

usage: threading_http.py server PORT | client PORT THREADS REQUESTS
"""
import hashlib
import http.client
import http.server
import signal
import sys
import threading


def body_of(size: int) -> bytes:
    block = hashlib.sha256(str(size).encode()).digest()
    return (block * (size // len(block) + 1))[:size]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer in several small writes must not wait for delayed acknowledgments.
    disable_nagle_algorithm = True

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(body_of(int(self.path[1:])))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(hashlib.sha256(body).hexdigest().encode())

    def log_message(self, *arguments) -> None:
        pass


def serve(port: int) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    # shutdown() waits for the loop that the handler interrupted, so another thread must call it.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    server.server_close()


def worker(port: int, number: int, requests: int, failures: list) -> None:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for turn in range(requests):
            size = 1 + (number * 7919 + turn * 104729) % 200000
            connection.request("GET", f"/{size}")
            assert connection.getresponse().read() == body_of(size), size
            connection.request("POST", "/", body=body_of(size))
            digest = connection.getresponse().read().decode()
            assert digest == hashlib.sha256(body_of(size)).hexdigest(), size
        connection.close()
    except Exception as failure:
        failures.append(f"thread {number}: {failure!r}")


def load(port: int, threads: int, requests: int) -> None:
    failures: list = []
    workers = [threading.Thread(target=worker, args=(port, n, requests, failures)) for n in range(threads)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    if failures:
        sys.exit("\n".join(failures))
    print(f"ok {2 * threads * requests} requests")


if sys.argv[1] == "server":
    serve(int(sys.argv[2]))
else:
    load(*map(int, sys.argv[2:]))
