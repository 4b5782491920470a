"""What programs run on: an open device with kernels and streams, and a second, equal device."""

from __future__ import annotations

import functools

import penstock as ps
from penstock.conformance.kernels import Kernels
from penstock.handle import Closing


class Bench(Closing):
    """An open device with the kernels and streams that programs use."""

    def __init__(self, device: ps.Device, seed: int = 0, *, validate: bool = False) -> None:
        self.device = device
        self.seed = seed
        self.kernels = Kernels(device)
        self._validate = validate
        self._streams = [device.default_stream]

    @functools.cached_property
    def other(self) -> ps.Device:
        """Another device of the same driver and options; on the simulator with the next seed."""
        simulated = self.device.info.driver == "sim"
        return ps.Device(
            None if simulated else self.device.name,
            driver=self.device.info.driver,
            transfers=self.transfers,
            validate=self._validate,
            seed=self.seed + 1,
        )

    def streams(self, count: int) -> list[ps.Stream]:
        while len(self._streams) < count:
            self._streams.append(self.device.stream())
        return self._streams[:count]

    def reopen(self, number: int) -> ps.Stream:
        self._streams[number].close()
        self._streams[number] = self.device.stream()
        return self._streams[number]

    @property
    def messages(self) -> list[str]:
        """The messages of both devices."""
        other = self.other.messages if "other" in vars(self) else []
        return [*self.device.messages, *other]

    @property
    def transfers(self) -> str:
        return self.device.scheduler.transfers

    @property
    def mapped(self) -> bool:
        """Whether views show device memory; if not, programs use copies instead."""
        return self.transfers != "unmapped" and self.device.info.uma

    def close(self) -> None:
        self.device.close()
        if "other" in vars(self):
            self.other.close()
