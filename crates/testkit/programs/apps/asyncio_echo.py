"""An asyncio echo server and a client with many connections at once.

usage: asyncio_echo.py server PORT | client PORT CONNECTIONS ROUNDS
"""
import asyncio
import hashlib
import signal
import sys


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    async with server:
        await stop.wait()


async def talk(port: int, number: int, rounds: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    total = 0
    for turn in range(rounds):
        block = hashlib.sha256(f"{number} {turn}".encode()).digest()
        message = block * (1 + (turn * 37) % 700)
        writer.write(message)
        answer = await reader.readexactly(len(message))
        assert answer == message, (number, turn)
        total += len(message)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    return total


async def load(port: int, connections: int, rounds: int) -> None:
    totals = await asyncio.gather(*(talk(port, n, rounds) for n in range(connections)))
    print(f"ok {sum(totals)} bytes")


if sys.argv[1] == "server":
    asyncio.run(serve(int(sys.argv[2])))
else:
    asyncio.run(load(*map(int, sys.argv[2:])))
