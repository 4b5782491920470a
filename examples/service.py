"""An asyncio service whose clients share one device, each with a stream of its own.

A request is a line of numbers over TCP; the answer is a line with their running sums. The event
loop never blocks: a launch only records, and `await` lets the loop run other clients until the
value arrives. The program starts the service and some clients of its own, checks the answers, and
exits.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import numpy as np

import penstock as ps

SCAN = """
// Running sums within one workgroup: y[i] = x[0] + … + x[i].
layout(local_size_x = 256) in;
layout(binding = 0) readonly buffer X { float x[]; };
layout(binding = 1) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Arguments { uint n; };
shared float sums[256];

void main() {
    uint i = gl_LocalInvocationIndex;
    sums[i] = i < n ? x[i] : 0;
    for (uint reach = 1; reach < 256; reach *= 2) {
        barrier();
        float before = i >= reach ? sums[i - reach] : 0;
        barrier();
        sums[i] += before;
    }
    if (i < n) y[i] = sums[i];
}
"""
MOST = 256  # numbers per request


class Service:
    """Answers requests on one device."""

    def __init__(self, device: ps.Device) -> None:
        self._device = device
        self._scan = device.kernel(SCAN, name="scan")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client, on a stream of its own, so that it waits for its own work only."""
        with self._device.stream() as stream:
            while line := await reader.readline():
                writer.write(f"{await self.answer(line.decode(), stream)}\n".encode())
                await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def answer(self, line: str, stream: ps.Stream) -> str:
        try:
            numbers = np.array(line.split(), np.float32)
        except ValueError as error:
            return f"error: {error}"
        if not 0 < numbers.size <= MOST:
            return f"error: between 1 and {MOST} numbers, please"
        x, y = self._device.empty(MOST), self._device.empty(MOST)
        x[: numbers.size].write(numbers, stream=stream)
        self._scan(x=x, y=y, n=numbers.size, groups=1, stream=stream)
        sums = await y[: numbers.size].read(stream=stream)
        return " ".join(f"{value:g}" for value in sums)


async def client(port: int, number: int, requests: int) -> int:
    """Send requests, check the answers, and return how many were right."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    right = 0
    for request in range(requests):
        numbers = np.arange(1, 2 + (number + request) % 50)
        writer.write(f"{' '.join(map(str, numbers))}\n".encode())
        answer = (await reader.readline()).decode()
        right += [float(word) for word in answer.split()] == list(np.cumsum(numbers))
    writer.close()
    await writer.wait_closed()
    return right


async def run(device: ps.Device, clients: int, requests: int) -> int:
    service = Service(device)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        right = await asyncio.gather(*(client(port, n, requests) for n in range(clients)))
    return sum(right)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--clients", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--requests", type=int, default=20, help="of each (%(default)s)")
    given = parser.parse_args(argv)
    with ps.Device(given.device) as device:
        right = asyncio.run(run(device, given.clients, given.requests))
        print(f"{device.name}: {right} of {given.clients * given.requests} answers were right")
        assert right == given.clients * given.requests


if __name__ == "__main__":
    main()
