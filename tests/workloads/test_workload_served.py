"""A workload served by the engine (no model): lengths as recorded, and exactly the hits that the ids promise."""

from __future__ import annotations

from kvtop.engine.api import Engine, EngineConfig, NullExecutor
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec

BLOCK = 16  # at length scale 1/32 a hash block of 512 tokens is one engine block


def serve_one_by_one(spec: WorkloadSpec):
    """Serve every request alone with room for everything; yields (row, view) in order of arrival."""
    workload = load_workload(spec, vocab_size=32_000)
    config = EngineConfig(
        num_blocks=20_000, block_size=BLOCK, max_num_seqs=4, max_batched_tokens=8192, max_model_len=8192
    )
    engine = Engine(config, NullExecutor())
    for row, request in zip(workload.rows, workload.source().pop_due(10**18), strict=True):
        rid = engine.submit_spec(request)
        engine.run()
        yield row, engine.request(rid)


def test_produced_lengths_are_the_recorded_ones():
    for row, view in serve_one_by_one(WorkloadSpec(name="azure-conv", limit=20)):
        assert len(view.prompt) == row.prompt_tokens
        assert len(view.output) == row.output_tokens


def test_hits_are_exactly_the_whole_blocks_that_ids_share():
    seen: set[int] = set()
    total = 0
    for row, view in serve_one_by_one(WorkloadSpec(name="mooncake-conversation", length_scale=1 / 32, limit=200)):
        num_whole = row.prompt_tokens // BLOCK
        num_hits = 0
        for hash_id in row.hash_ids[:num_whole]:
            if hash_id not in seen:
                break
            num_hits += 1
        seen.update(row.hash_ids[:num_whole])
        expected = min(num_hits, (row.prompt_tokens - 1) // BLOCK) * BLOCK
        assert view.cached_tokens == expected
        total += expected
    assert total > 1.5 * 199 * BLOCK  # much more than the one block that all rows share


def test_a_shared_system_prompt_is_computed_once():
    hits = [view.cached_tokens for _, view in serve_one_by_one(WorkloadSpec(name="poisson-shared-prefix", limit=10))]
    assert hits == [0] + [256] * 9
