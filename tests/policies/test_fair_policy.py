"""Fair sharing between tenants, in virtual time: a step of 10 ms computes 256 tokens, about 25,000 a second."""

from __future__ import annotations

from math import log
from random import Random

import pytest
from policy_helpers import STEP_NS, make_engine

from kvtop.analysis.stats import percentile
from kvtop.engine.api import Engine, RequestSpec, SamplingParams
from kvtop.engine.policies.tenants import TenantCounters

SECOND = 10**9


def stream(tenant: str, rate: float, start_s: float, end_s: float, *, prompt: int, output: int) -> list[RequestSpec]:
    """Poisson arrivals, log-normal lengths around ``prompt`` and ``output`` tokens."""
    rng = Random(f"{tenant} {rate}")
    specs, t = [], start_s
    while (t := t + rng.expovariate(rate)) < end_s:
        length = min(1000, max(8, int(rng.lognormvariate(log(prompt), 0.6))))
        params = SamplingParams(max_tokens=min(200, max(1, int(rng.lognormvariate(log(output), 0.6)))))
        first = 10_000 * len(specs) + rng.randrange(10_000)
        specs.append(RequestSpec(range(first, first + length), params, arrival_ns=int(t * SECOND), tenant=tenant))
    return specs


class Service:
    """Serves streams and remembers each first token and every token of work a tenant got."""

    def __init__(self, policy: str, *streams: list[RequestSpec]) -> None:
        self.specs = sorted((spec for specs in streams for spec in specs), key=lambda spec: spec.arrival_ns or 0)
        self.engine: Engine = make_engine(2048, 16, policy=policy, max_num_seqs=128, max_batched_tokens=256)
        self.of: dict[str, RequestSpec] = {}
        self.ttft_ns: dict[str, list[int]] = {}
        self.work: dict[str, int] = {}
        self.started: set[str] = set()
        self._next = 0

    def until(self, end_s: float) -> Service:
        engine = self.engine
        while engine.clock.now_ns() < end_s * SECOND:
            self._submit_due()
            if not engine.has_requests:
                engine.clock.advance(STEP_NS)
                continue
            out = engine.step()
            for chunk in out.plan:
                tenant = self.of[chunk.request_id].tenant
                self.work[tenant] = self.work.get(tenant, 0) + chunk.count
            for rid in out.tokens:
                spec = self.of[rid]
                if rid not in self.started:
                    self.started.add(rid)
                    self.ttft_ns.setdefault(spec.tenant, []).append(engine.clock.now_ns() - (spec.arrival_ns or 0))
        return self

    def _submit_due(self) -> None:
        while self._next < len(self.specs) and (self.specs[self._next].arrival_ns or 0) <= self.engine.clock.now_ns():
            spec = self.specs[self._next]
            self._next += 1
            self.of[self.engine.submit_spec(spec)] = spec

    def p99_ms(self, tenant: str) -> float:
        value = percentile(sorted(self.ttft_ns[tenant]), 99)
        assert value is not None
        return value / 1e6

    def share(self, tenant: str, before: dict[str, int]) -> float:
        """Of the work done since ``before``."""
        done = {name: work - before.get(name, 0) for name, work in self.work.items()}
        return done[tenant] / sum(done.values())


FLOOD = {"prompt": 100, "output": 15}  # 300 a second ask for 1.6 times what there is
POLITE = {"prompt": 250, "output": 15}  # 8 a second ask for a tenth


def test_a_flood_at_most_doubles_the_p99_ttft_of_the_other_tenant() -> None:
    polite, flood = stream("polite", 8, 0, 4, **POLITE), stream("flood", 300, 0, 4, **FLOOD)
    alone = Service("fair", polite).until(5)
    assert len(alone.ttft_ns["polite"]) == len(polite) >= 25
    together = Service("fair", polite, flood).until(5)
    assert len(together.ttft_ns["polite"]) == len(polite)
    assert together.p99_ms("polite") <= 2 * alone.p99_ms("polite")
    assert together.p99_ms("flood") > 10 * alone.p99_ms("polite"), "the flood is none"
    served_in_turn = Service("fcfs", polite, flood).until(5)
    assert served_in_turn.p99_ms("polite") > 10 * alone.p99_ms("polite")


def test_of_three_tenants_two_that_flood_get_the_same_and_the_third_what_it_asks_for() -> None:
    polite = stream("polite", 8, 0, 3, **POLITE)
    small, large = stream("small", 300, 0, 3, **FLOOD), stream("large", 150, 0, 3, prompt=300, output=15)
    alone = Service("fair", polite).until(4)
    together = Service("fair", polite, small, large).until(1)
    before = dict(together.work)
    together.until(3)
    assert together.p99_ms("polite") <= 3 * alone.p99_ms("polite")
    done = {name: work - before[name] for name, work in together.work.items()}
    assert done["small"] == pytest.approx(done["large"], rel=0.15)
    served_in_turn = Service("fcfs", polite, small, large).until(3)
    assert served_in_turn.work["small"] != pytest.approx(served_in_turn.work["large"], rel=0.15)


@pytest.mark.parametrize("rate_before", [0, 4])
def test_idling_or_asking_for_little_earns_no_credit(rate_before: float) -> None:
    # Two seconds of one tenant nearly alone, then both flood: from then on they share evenly.
    first = stream("first", 300, 0, 4, **FLOOD)
    later = stream("later", 300, 2, 4, **FLOOD)
    trickle = stream("later", rate_before, 0, 2, **POLITE) if rate_before else []
    service = Service("fair", first, trickle, later).until(2)
    before = dict(service.work)
    assert before.get("later", 0) < 0.2 * before["first"]
    service.until(3)
    assert service.share("later", before) == pytest.approx(0.5, abs=0.07)


def test_one_step_takes_turns_between_the_tenants() -> None:
    engine = make_engine(64, 4, policy="fair", max_num_seqs=4)
    for index in range(8):
        tenant = "few" if index >= 6 else "many"
        spec = RequestSpec([*range(100 * index, 100 * index + 5)], SamplingParams(max_tokens=4), f"{tenant}{index}")
        engine.submit_spec(RequestSpec(spec.prompt, spec.params, spec.request_id, tenant=tenant))
    assert engine.step().admitted == ["many0", "few6", "many1", "few7"]


def test_counters_follow_the_paper() -> None:
    counters = TenantCounters()
    for tenant in "ab":
        counters.arrived(tenant)
    counters.queued([("a1", "a"), ("b1", "b")])
    counters.computed("a", 10)
    counters.emitted("a", 3)
    assert counters.served == {"a": 16, "b": 0}
    counters.queued([("a1", "a"), ("b1", "b")])  # both stayed: nobody is lifted
    assert counters.served == {"a": 16, "b": 0}
    counters.queued([("a1", "a"), ("b2", "b")])  # b left the queue and comes back to those who waited
    assert counters.served == {"a": 16, "b": 16}


def test_counters_remember_debts_and_forget_the_rest() -> None:
    counters = TenantCounters()
    for number in range(1000):
        counters.arrived("always")
        counters.arrived(f"once{number}")
        counters.queued([(f"a{number}", "always"), (f"o{number}", f"once{number}")])
        counters.computed("always", 5)
        counters.computed(f"once{number}", 5)
        counters.queued([])
        counters.ended(f"once{number}")
        if number:
            counters.ended("always")
    assert len(counters.served) <= 2 + 64 + 2
    counters.computed("always", 10**6)
    counters.arrived("owing")
    counters.queued([("x", "owing")])
    counters.computed("owing", 10**6)
    counters.ended("owing")
    counters.arrived("owing")
    assert counters.served["owing"] >= counters.served["always"]
    for tenant in ("owing", "always"):
        counters.ended(tenant)
    assert counters.served == {}
