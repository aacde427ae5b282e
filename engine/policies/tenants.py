"""Service received by each tenant, for fair scheduling.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2): a computed
prompt token counts 1, an emitted token 2. A tenant that had nobody waiting and queues again starts no lower than those
who waited meanwhile: idling, or asking for less than one's share, earns no credit.
"""

from __future__ import annotations

from collections.abc import Iterable

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2


class TenantCounters:
    """``served`` by tenant. Tenants without live requests are kept only as long as they have had more than others."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}
        self._live: dict[str, int] = {}  # requests that have not ended
        self._floor = 0  # the least counter among those who were waiting (else running) when it was last looked at
        self._waiting: set[str] | None = None  # sequences at the last ordering; None: no policy asks for counters

    def arrived(self, tenant: str) -> None:
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self.served.setdefault(tenant, 0)

    def queued(self, waiting: Iterable[tuple[str, str]]) -> None:
        """Called once a step with (sequence id, tenant) of all who wait: lift the tenants that come back."""
        before = self._waiting or set()
        tenant_of = dict(waiting)
        staying = {tenant for seq_id, tenant in tenant_of.items() if seq_id in before}
        coming = set(tenant_of.values()) - staying
        others = staying or self._live.keys() - coming
        if others:
            self._floor = max(self._floor, min(self.served[tenant] for tenant in others))
        for tenant in coming:
            self.served[tenant] = max(self.served[tenant], self._floor)
        self._waiting = set(tenant_of)

    def computed(self, tenant: str, num_tokens: int) -> None:
        self.served[tenant] += INPUT_WEIGHT * num_tokens

    def emitted(self, tenant: str, num_tokens: int) -> None:
        self.served[tenant] += OUTPUT_WEIGHT * num_tokens

    def ended(self, tenant: str) -> None:
        self._live[tenant] -= 1
        if self._live[tenant]:
            return
        del self._live[tenant]
        if not self._live:  # nobody is left to be compared with
            self.served.clear()
            self._floor = 0
        elif self._waiting is None or self.served[tenant] <= self._floor:
            del self.served[tenant]
        elif len(self.served) > 2 * len(self._live) + 64:
            self.served = {t: count for t, count in self.served.items() if t in self._live or count > self._floor}
