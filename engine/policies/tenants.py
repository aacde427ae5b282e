"""Service received by each tenant, for fair scheduling.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2): a computed
prompt token counts 1, an emitted token 2; a tenant that comes back from idling starts at the smallest counter of the
active ones, so that idling earns no credit.
"""

from __future__ import annotations

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2


class TenantCounters:
    """``served`` by tenant, and how many live requests each has. Only tenants with live requests are kept."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}
        self._live: dict[str, int] = {}

    def arrived(self, tenant: str) -> None:
        if tenant not in self._live:
            active = [self.served[t] for t in self._live]
            floor = min(active, default=0)
            self.served[tenant] = max(self.served.get(tenant, 0), floor)
            self._live[tenant] = 0
        self._live[tenant] += 1

    def computed(self, tenant: str, num_tokens: int) -> None:
        self.served[tenant] += INPUT_WEIGHT * num_tokens

    def emitted(self, tenant: str, num_tokens: int) -> None:
        self.served[tenant] += OUTPUT_WEIGHT * num_tokens

    def ended(self, tenant: str) -> None:
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            if not self._live:
                self.served.clear()  # nobody is left to be compared with
