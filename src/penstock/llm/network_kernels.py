"""The kernels that all networks of one device share, and the variants that are in use."""

from __future__ import annotations

import threading
from collections.abc import Callable

import penstock as ps
from penstock.llm.compiling import Compiled
from penstock.llm.layers import Layers
from penstock.llm.products import Products
from penstock.llm.routing import Routing
from penstock.llm.variants import Variants


class Kernels:
    """The kernels that all networks of one device share; each is compiled on first use.

    `choose` measures which `variants` are best, if that is not known yet; until `settle` calls it,
    these are in use. `show_progress` is for compilations that take long enough to ask what is
    going on.
    """

    def __init__(
        self,
        device: ps.Device,
        variants: Variants | None = None,
        *,
        choose: Callable[[Compiled], Variants] | None = None,
        show_progress: bool = False,
    ) -> None:
        self.device = device
        self.show_progress = show_progress
        self.compiled = Compiled(device)
        self._use(variants or Variants.expected(device))
        self._choose = choose
        self._lock = threading.RLock()  # reentrant: a signal handler may generate, too

    def _use(self, variants: Variants) -> None:
        self.products = Products(
            self.device, way=variants.decode, batch_way=variants.batch, compiled=self.compiled
        )
        self.layers = Layers(self.device, attention=variants.attention, compiled=self.compiled)
        self.routing = Routing(self.device, self.compiled)
        self.variants = variants

    def settle(self) -> None:
        """Have the best variants from now on, which are measured if they are not known yet."""
        with self._lock:
            if self._choose is not None:
                found = self._choose(self.compiled)
                self._choose = None
                if found != self.variants:
                    self._use(found)
