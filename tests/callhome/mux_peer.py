"""A process at the other end of the connection that two nodes share: sends until it is killed."""

from __future__ import annotations

import asyncio
import socket
import sys

from actors.messages import Items
from tests.callhome.mux_ends import Side
from transport.callhome.net import Net


async def main(port: int) -> None:
    """Announce a body that never ends, and say something all the time."""
    side = Side(Net(), socket.create_connection(("127.0.0.1", port)), 0xB)
    side.body(1, bytes(256 << 20))
    number = 0
    while not side.errors:
        side.connection.send(Items(2, number, [b"x"]))
        number += 1
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
