"""kvtop's own server is called kvtop by those who look at it, and has no null block."""

from __future__ import annotations

from attach_helpers import attached, folded, gauge, sample

from kvtop.attach.checkup import check_events
from kvtop.state.attached import capacity

PAGE = gauge("vllm:kv_cache_usage_perc", 0.5, engine="0", model_name="m") + gauge(
    "vllm:cache_config_info", 1.0, engine="0", model_name="m", num_gpu_blocks="101", block_size="16"
)  # 50 of 100 blocks: of 101 it would be no whole number


def test_its_own_metric_tells_kvtop_from_vllm() -> None:
    for page, kind, blocks in ((PAGE, "vllm", 100), (PAGE + gauge("kvtop_run_info", 1, policy="fcfs"), "kvtop", 101)):
        looked = sample(1, page)
        assert (looked.kind, len(looked.engines)) == (kind, 1)
        assert [capacity(engine) for engine in attached(folded([looked])).engines] == [blocks]


def test_kvtop_is_not_told_to_take_flags_of_vllm() -> None:
    (check,) = check_events([], [], wait_s=0.1, kinds={"kvtop"})
    assert "vllm" not in check.remedy.lower()
    assert "kv-events-config" not in check.remedy
    assert "serve-api --tui" in check.remedy
