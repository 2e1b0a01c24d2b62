"""A worker in a process of its own that acknowledges every request and never calls home; it prints
its address.
"""

from __future__ import annotations

import asyncio
import sys

from transport.wire.request import RequestReader, pack_reply


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    requests = RequestReader()
    while data := await reader.read(65_536):
        for _ in requests.feed(data):
            writer.write(pack_reply(b""))
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"{host}:{port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
