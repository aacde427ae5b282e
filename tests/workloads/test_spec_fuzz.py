"""Whatever a workload spec says, reading it ends with a recipe and its rows, or with one line about it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtop.engine.errors import KvtopError, UsageError
from kvtop.workloads.generators.arrivals import ARRIVALS
from kvtop.workloads.generators.distributions import DISTRIBUTIONS
from kvtop.workloads.generators.stream import stream_keys
from kvtop.workloads.generators.structures import STRUCTURES
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec
from kvtop.workloads.spec_file import COMMON, TRACE, read_spec_file

ROW = '{"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [0]}\n'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seed = -5", "seed is -5, expected an integer from 0 to"),
        ("seed = 9000000000000000000", "seed is 9000000000000000000, expected an integer from 0 to"),
        ("seed = 99999999999999999999", "seed is an integer of more than 64 bits"),
        ("limit = 0", "limit is 0, expected at least 1"),
        ("time_scale = -1", "time_scale is -1, expected a finite number >= 0"),
        ("time_scale = nan", "time_scale is nan, expected a finite number >= 0"),
        ("length_scale = 0", "length_scale is 0, expected a finite number > 0"),
        ("tile = 0", "tile is 0, expected an integer from 1"),
        ("hash_block_tokens = 0", "hash_block_tokens is 0, expected an integer from 1"),
        ("output_tokens = -3", "output_tokens is -3, expected an integer from 1"),
        ("start_s = -0.5", "start_s is -0.5, expected a number from 0"),
        ("start_s = nan", "start_s is nan, expected a number from 0"),
        ("end_s = 0", "end_s is 0, expected a number above 0"),
        ("start_s = 4\nend_s = 2.5", "end_s is 2.5 and start_s 4, expected an end after the start"),
        ("arrival_rate = 0", "arrival_rate is 0, expected a number above 0"),
        ("arrival_rate = nan", "arrival_rate is nan, expected a number above 0"),
    ],
)  # fmt: skip
def test_a_number_out_of_bounds_is_named_with_its_file_and_what_was_expected(
    tmp_path: Path, line: str, expected: str
) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(f'kind = "trace"\npath = "trace.jsonl"\n{line}\n')
    with pytest.raises(UsageError) as caught:
        read_spec_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize("line", ["seed = 0", "seed = 7", "limit = 1", "time_scale = 0", "tile = 2", "end_s = inf",
                                  "arrival_rate = inf", "start_s = 0\nend_s = 5"])  # fmt: skip
def test_a_number_at_its_bound_is_taken(tmp_path: Path, line: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(f'kind = "trace"\npath = "trace.jsonl"\n{line}\n')
    read_spec_file(path)


NUMBERS = st.sampled_from([
    0, 1, 2, 3, 7, 20, -1, -5, 2**31, 2**63 - 1, 2**64, 10**30, 10**400, 0.0, -0.0, 0.5, 1.0, 2.5, 1e-300, 1e308,
    math.inf, -math.inf, math.nan,
])  # fmt: skip
WORDS = st.sampled_from(
    ["", "x", "a\0b", "é\u202e", "uniform", "trace", "trace.jsonl", ".", "open", "closed", "mooncake", "x" * 300]
)
NAMES = sorted(
    {*COMMON, *TRACE, *stream_keys({}), "streams", "nonsense"}
    | {key for piece in (*ARRIVALS.values(), *DISTRIBUTIONS.values(), *STRUCTURES.values()) for key in piece.options}
)
KINDS = ["trace", "synthetic", "mix", *ARRIVALS, *DISTRIBUTIONS, "no-such"]


def tables(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    kinds = st.fixed_dictionaries({}, optional={"kind": st.sampled_from(KINDS)})
    return st.builds(lambda a, b: a | b, st.dictionaries(st.sampled_from(NAMES), values, max_size=5), kinds)


VALUES = st.recursive(
    NUMBERS | WORDS | st.booleans(), lambda inner: st.lists(inner, max_size=3) | tables(inner), max_leaves=6
)
SOUND = st.sampled_from([
    1, 2, 3, 0.5, 2.5, [1, 3], {"kind": "uniform", "low": 1, "high": 4}, {"kind": "zipf", "exponent": 1.1, "high": 5},
    {"kind": "geometric", "mean": 2.0, "high": 5}, {"kind": "normal", "mean": 3, "std": 2, "low": 1, "high": 9},
    {"kind": "trace", "path": "trace.jsonl"},
])  # fmt: skip


def changes(keys: Iterable[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(keys)), SOUND | NUMBERS | VALUES, max_size=2)


def toml(value: Any) -> str:
    """A value as TOML; keys and strings quoted, control characters escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    return repr(value)


@st.composite
def specs(draw: st.DrawFn) -> str:
    """A spec near a sound one: some keys changed, so that what lies deep is reached too."""
    kind = draw(st.sampled_from(["trace", "synthetic", "mix"]))
    structure = draw(st.sampled_from(sorted(STRUCTURES)))
    stream = {"structure": structure, STRUCTURES[structure].counted: 3}
    process = draw(st.sampled_from([{"rate": 5.0}, {"every_s": 0.5}, {"arrivals": draw(tables(SOUND | NUMBERS))}]))
    if kind == "trace":
        table = {"path": "trace.jsonl", **draw(changes({*COMMON, *TRACE}))}
    elif kind == "synthetic":
        table = {**stream, **process, **draw(changes({*COMMON, *stream_keys(stream)}))}
    else:
        first = {"name": "a", "num_requests": 2, "rate": 5.0}
        table = {"streams": [first, {"name": "b", **stream, **process, **draw(changes(stream_keys(stream)))}]}
        table |= draw(changes(COMMON))
    table = {"kind": kind, **table}
    return "\n".join(f"{toml(key)} = {toml(value)}" for key, value in table.items()) + "\n"


def read_or_explained(text: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.toml"
        (Path(folder) / "trace.jsonl").write_text(ROW)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        said = ""
        try:
            recipe = read_spec_file(path)
            if recipe.options.get("num_requests", 1) in (1, 2, 3):
                workload = load_workload(WorkloadSpec(name=str(path)), vocab_size=100, max_model_len=1000)
                assert workload.num_requests >= 1
        except KvtopError as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 900


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_a_spec_is_read_or_explained(text: str) -> None:
    read_or_explained(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=60) | st.text(max_size=60) | st.integers(1, 3000).map(lambda n: "a = " + "[" * n + "]" * n))
def test_what_is_no_spec_is_explained(text: str | bytes) -> None:
    try:
        data = text if isinstance(text, bytes) else text.encode()
    except UnicodeEncodeError:
        return
    read_or_explained(data)
