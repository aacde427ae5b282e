"""--vary: every combination of the named values, each read as the option itself reads it, none in another's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtop.bench import plan_points, point_labels
from kvtop.cli.bench import add_arguments, make_specs
from kvtop.cli.main import main
from kvtop.cli.parser import Parser
from kvtop.run.spec import RunSpec

NULL = "-w apc --executor null --num-blocks 300 -o out"


def specs(words: str) -> list[RunSpec]:
    parser = Parser("kvtop bench")
    add_arguments(parser)
    return make_specs(parser.parse(words.split()))


def engines(words: str, *keys: str) -> list[Any]:
    return [tuple(spec.engine.get(key) for key in keys) for spec in specs(words)]


def test_switches_and_numbers_make_every_combination_in_the_order_given() -> None:
    words = f"{NULL} --vary prefix-caching=off,on --vary block-size=8,16"
    assert engines(words, "prefix_caching", "block_size") == [(False, 8), (False, 16), (True, 8), (True, 16)]


def test_a_value_means_what_the_option_means() -> None:
    varied = specs(f"{NULL} --vary prefix-caching=off,on --vary chunked-prefill=off,on")
    plain = [
        specs(f"{NULL} --{cache} --{chunked}")[0]
        for cache in ("no-prefix-caching", "prefix-caching")
        for chunked in ("no-chunked-prefill", "chunked-prefill")
    ]
    assert varied == plain
    assert specs(f"{NULL} --vary eviction=fifo")[0] == specs(f"{NULL} --eviction fifo")[0]
    assert engines(f"{NULL} --vary max-num-seqs=8_000,2", "max_num_seqs") == [(8000,), (2,)]


def test_sizes_of_the_pool_and_the_model_can_be_varied() -> None:
    assert [spec.num_blocks for spec in specs("-w apc --executor null -o out --vary num-blocks=200,300")] == [200, 300]
    made = specs("-w apc -m tiny -o out --vary kv-memory=64MiB,1GiB --vary kv-dtype=auto,int8")
    assert [spec.kv_memory_bytes for spec in made] == [2**26, 2**26, 2**30, 2**30]
    assert [spec.engine.get("kv_dtype") for spec in made] == [None, "int8"] * 2


def test_a_parameter_of_a_policy_can_be_varied() -> None:
    made = engines(f"{NULL} -p lpm --vary policy-param=aging_steps=8,aging_steps=64", "policy_params")
    assert made == [({"aging_steps": 8},), ({"aging_steps": 64},)]


def test_variants_have_directories_and_labels_of_their_own(tmp_path: Path) -> None:
    made = specs(f"{NULL} -p fcfs -p lpm --vary prefix-caching=off,on --vary max-num-seqs=4,8 --replicates 2")
    points = [spec for spec, _ in plan_points(made, tmp_path, resume=False, force=False)]
    assert len(points) == 16
    assert len({spec.run_dir for spec in points}) == 16
    labels = point_labels(points)
    assert len(set(labels)) == 16
    assert labels[0] == "fcfs apc max_num_seqs=4 cache=off"
    assert labels[-1] == "lpm apc max_num_seqs=8 cache=on r1"


def test_off_is_zero_and_the_same_run_as_not_saying_it() -> None:
    keys = ("host_cache_blocks",)
    assert engines(f"{NULL} --vary host-cache-blocks=0,128", *keys) == [(None,), (128,)]
    assert specs(f"{NULL} --host-cache-blocks 0 --host-blocks 0") == specs(NULL)


def test_host_blocks_are_for_the_points_that_swap() -> None:
    made = engines(f"{NULL} --vary preemption=recompute,swap --vary host-blocks=4", "preemption", "host_blocks")
    assert made == [("recompute", None), ("swap", 4)]
    assert engines(f"{NULL} --vary preemption=recompute,swap --host-blocks 4", "host_blocks") == [(None,), (4,)]


def test_a_value_written_twice_is_one_variant() -> None:
    assert engines(f"{NULL} --vary block-size=8,8", "block_size") == [(8,)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--vary prefix-cashing=on", "unknown --vary key 'prefix-cashing'; did you mean 'prefix-caching'?"),
        ("--vary limits=3,4", "unknown --vary key 'limits'; did you mean 'limit'?"),
        ("--vary block-size", "--vary 'block-size': expected KEY=V1,V2"),
        ("--vary block-size=8,", "--vary 'block-size=8,': expected KEY=V1,V2"),
        ("--vary prefix-caching=yes", "--vary prefix-caching: 'yes' is neither on nor off"),
        ("--vary block-size=8,0", "--vary block-size: '0' is out of range"),
        ("--vary kv-dtype=int9", "--vary kv-dtype: unknown KV dtype 'int9'; did you mean 'int8'?"),
        ("--vary eviction=lru,lfo", "unknown eviction policy 'lfo'; did you mean 'lfu'?"),
        ("--vary num-blocks=1e3,2e3 --kv-memory 1GiB", "--vary num-blocks: not allowed with --kv-memory"),
        ("--vary num-blocks=10 --vary kv-memory=1GiB", "--vary num-blocks: not allowed with --kv-memory"),
        ("--vary block-size=8,32 --block-size 4", "--vary block-size: --block-size is given as well"),
        ("--vary prefix-caching=on --no-prefix-caching", "--vary prefix-caching: "),
        ("--vary block-size=8,32 --block-size 16", "--vary block-size: --block-size is given as well"),
        ("--vary block-size=8,32 --block-size=16", "--vary block-size: --block-size is given as well"),
        ("--vary model=tiny,default -mdefault", "--vary model: --model is given as well"),
        ("--vary policy=fcfs,lpm", "--vary policy: repeat -p instead: -p fcfs -p lpm"),
        ("--vary allocator=paged,contiguous-max", "--vary allocator: repeat --allocator instead: --allocator paged "),
        ("--vary preemption=recompute --vary host-blocks=4", "preemption by recompute never uses them"),
        ("--vary block-size=8 --vary block-size=16", "--vary block-size is given twice"),
        ("--vary prefix-caching=on --allocator contiguous-max", "prefix_caching needs the paged allocator"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert main(["bench", "-w", "apc", "--executor", "null", *words.split(), "-o", str(tmp_path / "out")]) == 2
    found = capsys.readouterr()
    assert found.err.count("\n") == 1
    assert says in found.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("varied", "says"),
    [
        ("--vary block-size=8,16", "block size is 8 and 16"),
        ("--vary executor=null,torch -m tiny", "clock kind is virtual and real"),
    ],
)
@pytest.mark.parametrize("asked", ["--plot ttft", "--svg {tmp}/plot.svg"])
def test_a_plot_of_what_cannot_be_compared_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], varied: str, says: str, asked: str
) -> None:
    options = asked.format(tmp=tmp_path).split()
    assert main(["bench", "-w", "apc", *varied.split(), *options, "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert f"{options[0]}: " in err
    assert f"`kvtop compare --force {tmp_path / 'out'}`" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_plot_they_run_and_compare_can_be_made_to_show_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = ["-w", "apc", "--executor", "null", "--limit", "2", "--vary", "block-size=8,16"]
    assert main(["bench", *words, "-o", out]) == 0
    found = capsys.readouterr()
    assert found.out.count(": complete, ") == 2
    assert "not comparable: block size is 8 in " in found.err
    assert "`kvtop compare --force` sets them side by side" in found.err
    assert main(["compare", "--force", out]) == 0
    assert "forced: block size is 8 in " in capsys.readouterr().out


def test_a_plot_that_only_the_results_rule_out_is_a_failure_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts cut at other lengths are other workloads, which nobody knows before they are cut."""
    words = ["-w", "apc", "--executor", "null", "--limit", "2", "--too-long", "truncate"]
    svg = tmp_path / "plot.svg"
    varied = ["--vary", "max-model-len=200,300", "--svg", str(svg)]
    assert main(["bench", *words, *varied, "-o", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert "not comparable: workload hash is " in err
    assert "kvtop: --svg: no plot was made, there is no comparison to draw\n" in err
    assert not svg.exists()


def test_workloads_side_by_side_are_refused_before_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["compare", "-w", "apc", "-w", "chunked", "--executor", "null", "-o", str(out)]) == 2
    assert "not comparable: workload is apc and chunked" in capsys.readouterr().err
    assert not out.exists()


def test_block_sizes_side_by_side_are_refused_before_they_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "-w", "apc", "--executor", "null", "--vary", "block-size=8,16", "-o", str(tmp_path / "out")]
    assert main(words) == 2
    assert "not comparable: block size is 8 and 16" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_recorded_runs_cannot_be_varied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path), "--vary", "block-size=8,16"]) == 2
    assert "--vary makes runs" in capsys.readouterr().err
