"""When messages arrive, under a cost model: the only place that says what a message costs.

A core spends `message_us` on each message, one after another. A message then takes its links, each
shared with the messages that other cores send at the same time (see `links`), and is counted
`latency_us` after its last byte. An exchange, the messages of one semaphore between two waits for
it, takes at least the model's floor for its number of peers.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable

from kimi.lab.predict.costs import CostModel
from kimi.lab.predict.links import SIBLING, Slice


class Network:
    """The links that the simulated core takes part in; times in cycles of its timer."""

    def __init__(self, costs: CostModel, where: Slice) -> None:
        self._costs, self._where = costs, where
        self._free: dict[str, float] = {}
        self._sender_free = 0.0
        self._open: dict[Hashable, tuple[float, int]] = {}  # first message, peers so far
        self._chip_rate = costs.bytes_cycle(costs.link_bytes_s)
        self._sibling_rate = costs.bytes_cycle(costs.sibling_bytes_s)
        self._latency = costs.cycles(costs.latency_us)
        self._message = costs.cycles(costs.message_us)
        self.link_bytes: defaultdict[str, float] = defaultdict(
            float
        )  # over the fullest link at each place

    def send(self, now: float, offset: int, size: float, exchange: Hashable) -> tuple[float, ...]:
        """A message of `size` bytes to `core ^ offset`.

        Returns: when it begins, when it has left, and when it is counted at its receiver.
        """
        begin = max(now, self._sender_free)
        ready = end = self._sender_free = begin + self._message
        for link, count in self._where.loads(offset).items():
            rate = self._sibling_rate if link == SIBLING else self._chip_rate
            free = max(ready, self._free.get(link, 0.0)) + count * size / rate
            self._free[link] = free
            end = max(end, free)
            self.link_bytes[link] += count * size
        first, peers = self._open.get(exchange, (now, 0))
        self._open[exchange] = first, peers + 1
        floor = first + self._costs.cycles(self._costs.floor(peers + 1))
        return begin, end, max(end + self._latency, floor)

    @property
    def worst_bytes(self) -> float:
        """Bytes over the fullest link between chips."""
        return max((n for link, n in self.link_bytes.items() if link != SIBLING), default=0)

    def wait(self, exchange: Hashable) -> None:
        """The core waits for its peers: the next message opens another exchange."""
        self._open.pop(exchange, None)


def exchange_us(costs: CostModel, where: Slice, sizes: Iterable[tuple[int, float]]) -> float:
    """Microseconds of an exchange by itself.

    Args:
      sizes: (offset, bytes) of each message.
    """
    network, arrived = Network(costs, where), 0.0
    for offset, size in sizes:
        arrived = max(arrived, network.send(0.0, offset, size, None)[2])
    return costs.us(arrived)
