"""Each number on a screen is that of the JSON of the same moment, as exactly as it is told.

The screen is read back with the patterns below, each beside what the JSON says there. No digit may be left over: a
number that nothing explains fails too. What is read is compared as an interval: 2.6k stands for 2,550 to 2,650.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import make_frames
import pytest
from tui_fakes import app_with, recorded, settled
from tui_looks import SIZES, looks
from tui_states import STATES, State

from kvtop.cli.main import main
from kvtop.state.numbers import MISS_WORDS
from kvtop.state.snapshot import snapshot
from kvtop.tui.panels.queue import REASONS

Data = dict[str, Any]
Rule = tuple[str, Callable[[Data, re.Match[str]], list[Any]]]

SCALES = {"": 1, "k": 1e3, "M": 1e6, "%": 0.01, "ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
COUNT = r"([\d.,]+[kMG]?)"
SHARE = r"([<>]?[\d.]+ %)"
TIME = r"([\d.]+ (?:ns|µs|ms|s)|\d+m\d\ds|-)"
AGE = r"([\d.]+s|\d+m\d\ds)"
NAME = r"([\w#-]+…?)"


def interval(text: str) -> tuple[float, float]:
    """What a number on the screen stands for, in ns, blocks, tokens or parts of one."""
    if match := re.fullmatch(r"(\d+)m(\d\d)s", text):
        seconds = 60 * int(match[1]) + int(match[2])
        return (seconds - 0.5) * 1e9, (seconds + 1) * 1e9
    if match := re.fullmatch(r"(\d+):(\d\d):(\d\d)", text):  # a clock, full seconds
        seconds = 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3])
        return seconds * 1e9, (seconds + 1) * 1e9
    match = re.fullmatch(r"([<>]?)([+-]?[\d,]+(?:\.\d+)?) ?(\D*)", text)
    assert match, f"{text!r} is no number"
    digits, scale = match[2].replace(",", ""), SCALES[match[3]]
    value, half = float(digits) * scale, 0.5 * 10.0 ** -len(digits.partition(".")[2]) * scale
    if match[1]:
        return (0.0, value) if match[1] == "<" else (value, 1.0)
    if re.fullmatch(r"[\d.]+s", text):  # an age, full tenths of a second
        return value, value + 2 * half
    return value - half, value + half


def agrees(shown: str | None, told: Any) -> bool:
    """Whether ``shown`` on the screen is what the JSON tells. None: that part of the pattern is not there."""
    if shown is None:
        return True
    if shown in ("-", "nobody"):
        return told in (None, 0)
    if isinstance(told, str):
        return told == shown or (shown.endswith("…") and told.startswith(shown[:-1]))
    low, high = interval(shown)
    slack = 1e-9 * max(abs(low), abs(high))
    return told is not None and low - slack <= told <= high + slack


def unread(rows: list[str], data: Data, rules: list[Rule]) -> tuple[list[str], list[str], int]:
    """Rows with something numeric left once all rules are applied, what disagrees, and how many numbers agree."""
    wrong, right = [], 0
    for at, row in enumerate(rows):
        for pattern, tell in rules:
            for match in re.finditer(pattern, row):
                told = tell(data, match)
                for shown, value in zip(match.groups(), told, strict=True):
                    right += shown is not None
                    if not agrees(shown, value):
                        wrong.append(f"{match[0].strip()!r}: {shown!r}, and the JSON says {value!r}")
            row = re.sub(pattern, lambda found: " " * len(found[0]), row)
        rows[at] = row
    return [row for row in rows if re.search(r"\d", row)], wrong, right


def number(*names: str) -> Callable[[Data, re.Match[str]], list[Any]]:
    return lambda data, match: [data["numbers"][name] for name in names]


def told(*values: Any) -> Callable[[Data, re.Match[str]], list[Any]]:
    """Of words that are the same every time."""
    return lambda data, match: list(values)


def of_pool(name: str) -> Rule:
    def tell(data: Data, match: re.Match[str]) -> list[Any]:
        blocks = data["numbers"][f"pool.{name}_blocks"]
        return [blocks, blocks / data["numbers"]["pool.num_blocks"]]

    return rf"{name} {COUNT}(?: {SHARE})?", tell


def waiting_row(data: Data, match: re.Match[str]) -> list[Any]:
    reason = next(reason for reason, words in REASONS.items() if words == match[1])
    row = next(row for row in data["waiting"] if row["reason"] == reason)
    return [match[1], row["count"], row["oldest_ns"], row["oldest"]]


def missed_row(data: Data, match: re.Match[str]) -> list[Any]:
    reason = next(reason for reason, words in MISS_WORDS.items() if words == match[1])
    return [match[1], data["numbers"][f"cache.missed_{reason}"]]


def head_row(data: Data, match: re.Match[str]) -> list[Any]:
    head = data["head_of_line"]
    return [head["name"], head["need_blocks"], head["have_blocks"]]


def latency_row(data: Data, match: re.Match[str]) -> list[Any]:
    key = match[1].lower()
    values = [data["numbers"][f"latency.{key}_{part}"] for part in ("p50_ns", "p95_ns", "p99_ns", "n")]
    return [match[1], *values]


def holder_row(data: Data, match: re.Match[str]) -> list[Any]:
    kind = "tenant" if match[5] else "request"
    row = next(row for row in data["holders"] if row["kind"] == kind and row["name"] == match[6])
    share = row["blocks"] / data["numbers"]["pool.num_blocks"] if kind == "request" else None
    prompt = row["prompt_tokens"]
    return [row["block_ns"] / 1e9, row["blocks"], share, row["cached_tokens"] / prompt if prompt else None, "tenant ",
            row["name"]]  # fmt: skip


def finding_row(data: Data, match: re.Match[str]) -> list[Any]:
    texts = [f"{found['text']}  ({found['rule']})" for found in data["findings"]]
    found = next((text for text in texts if text.startswith(match[1].removesuffix("…"))), None)
    return [f"{found}" if found is None or match[1].endswith("…") else match[1]]


def objectives(data: Data, match: re.Match[str]) -> list[Any]:
    return [*(data["numbers"][f"latency.slo_{name}"] for name in ("attainment", "judged")), "ttft<2s,tpot<100ms"]


def miss(data: Data, match: re.Match[str]) -> list[Any]:
    return [1 - data["numbers"]["pool.token_fill"]]


WORDS = "|".join(re.escape(words) for words in REASONS.values())
MISSES = "|".join(re.escape(words) for words in MISS_WORDS.values())
HEADER: list[Rule] = [
    (r"step ([\d,]+)\s+(\d+:\d\d:\d\d)", lambda data, match: [data["step"], data["t_ns"]]),
    (r"kvtop \d [A-Z]", told()),
    (r"(SmolLM2-135M-Instruct) · (\w+)(?: · (float32))?",
     lambda data, match: [data["run"]["model"], data["run"]["device"], data["run"]["dtype"]]),
    (r"stopped at (.*\))", lambda data, match: [data["paused_by"]]),
    (rf"no step for {TIME}", number("run.since_step_ns")),
]  # fmt: skip
SCRUBBER: list[Rule] = [(rf"^ -{TIME}", lambda data, match: [data["t_ns"]])]
OVERVIEW: dict[str, list[Rule]] = {
    "PoolPanel": [
        (rf"{COUNT} blocks? of {COUNT} tokens?  {SHARE} used",
         lambda data, match: [data["numbers"]["pool.num_blocks"], data["run"]["block_size_tokens"],
                              data["numbers"]["pool.used_share"]]),
        *(of_pool(name) for name in ("used", "shared", "idle", "fresh")),
        (rf"tail waste {SHARE}", miss),
        (rf"runway {TIME}  {COUNT} reclaimable / ([\d.,]+) a second",
         number("runway.ns", "runway.reclaimable_blocks", "runway.growth_blocks_s")),
        (r"change by ([+-][\d.]+)/s", number("runway.growth_blocks_s")),
        (rf"next victim {NAME}", number("runway.victim")),
        (r"decodes alone take ([\d.]+) a second", number("runway.floor_blocks_s")),
        (r"no two steps in the last 10 s", told()),
    ],
    "QueuePanel": [
        (rf"running {COUNT}(?:/([\d,]+))?",
         lambda data, match: [data["numbers"]["queue.running"], data["run"]["max_num_seqs"]]),
        (r"waiting ([\d,]+|nobody)", number("queue.waiting")),
        (rf"^({WORDS})\s+{COUNT} ▪*\s+{AGE} {NAME}", waiting_row),
        (rf"^{NAME} needs {COUNT} blocks?, there were {COUNT}", head_row),
        (rf"^{NAME} a preemption in this step", lambda data, match: [data["head_of_line"]["name"]]),
        (rf"preempted {COUNT}", number("run.preemptions")),
        (rf"recomputed {COUNT}(?: tok(?:ens?)?)?", number("run.recomputed_tokens")),
    ],
    "CachePanel": [
        (rf"prefix hits {SHARE} of {COUNT} tokens", number("cache.hit_rate", "cache.query_tokens")),
        (rf"last 60 s\s+{SHARE}  requests {SHARE}",
         number("cache.recent_hit_rate", "cache.recent_request_hit_rate")),
        (rf"^\s+({MISSES})\s+{SHARE}", missed_row),
        (rf"evictions {COUNT}", number("cache.evictions")),
    ],
    "LatencyPanel": [
        (r"last 60 s|p50     p95     p99|no objectives set \(--slo ttft<2s\)", told()),
        (rf"^SLO   (?:met )?{SHARE} of {COUNT}  (.*)$", objectives),
        (rf"^(TTFT|ITL|queue)\s+{TIME}\s+{TIME}\s+{TIME}\s+{COUNT}$", latency_row),
    ],
    "ThroughputPanel": [
        (r"last 5 s", told()),
        (rf"prefill\s+({COUNT[1:-1]}|-) tok/s", number("throughput.prefill_tokens_s")),
        (rf"decode\s+({COUNT[1:-1]}|-) tok/s", number("throughput.decode_tokens_s")),
        (rf"requests\s+({COUNT[1:-1]}|-) /s", number("throughput.requests_s")),
        (rf"step\s+{TIME}  {COUNT}(?:/([\d,]+))? tok(?:, ([\d,]+) seqs?)?",
         lambda data, match: [*(data["numbers"][f"throughput.step_{name}"] for name in ("ns", "tokens")),
                              data["run"]["max_batched_tokens"], data["numbers"]["throughput.step_sequences"]]),
    ],
    "HoldersPanel": [(rf"^[> ]\s*{COUNT}\s+{COUNT}\s+({SHARE[1:-1]}|-)\s+{SHARE}?\s*(tenant )?{NAME}$", holder_row)],
    "FindingsPanel": [(r"^\s*!\s+(.+)$", finding_row)],
    "StepLanePanel": [(rf"last step {TIME}", number("throughput.step_ns"))],
}  # fmt: skip
NOT_OF_THE_RUN = {"DevicePanel": "what the devices of this machine say now; it is of no moment of the run"}
STATE_SIZE = pytest.mark.parametrize(
    ("state", "size"),
    [(state, size) for size in SIZES for state in STATES],
    ids=[f"{state.name}-{size[0]}x{size[1]}" for size in SIZES for state in STATES],
)


@STATE_SIZE
def test_each_number_on_the_overview_is_that_of_the_json(state: State, size: tuple[int, int]) -> None:
    look = looks(state, size)["Overview"]
    assert set(look.panels) <= {*OVERVIEW, *NOT_OF_THE_RUN}
    text = look.picture.text
    parts = [(text[:2], HEADER), (text[-2:-1], SCRUBBER)]
    parts += [(list(look.panels[name]), rules) for name, rules in OVERVIEW.items() if name in look.panels]
    compared = 0
    for rows, rules in parts:
        left, wrong, right = unread(rows, look.data, rules)
        assert not wrong
        assert not left, left
        compared += right
    assert compared >= (15 if state.name == "empty" else 40)


@STATE_SIZE
def test_the_percentiles_of_the_latency_screen_are_those_of_the_json(state: State, size: tuple[int, int]) -> None:
    look = looks(state, size)["Latency"]
    rows = look.panels["DistributionPanel"]
    rules: list[Rule] = [(rf" p{part} {TIME}", number(f"latency.ttft_p{part}_ns")) for part in (50, 95, 99)]
    rules.append((rf" n {COUNT} ─", number("latency.ttft_n")))
    _, wrong, right = unread([rows[0], *(row for row in rows if " p50 " in row)], look.data, rules)
    assert not wrong
    assert right >= (1 if state.name == "empty" else 3)


@STATE_SIZE
def test_the_counts_above_the_requests_are_those_of_the_json(state: State, size: tuple[int, int]) -> None:
    look = looks(state, size)["Requests"]
    rules: list[Rule] = [
        (rf"{COUNT} running", number("queue.running")), (rf"{COUNT} waiting", number("queue.waiting")),
        (rf"{COUNT} (?:finished|done)", number("run.finished")),
    ]  # fmt: skip
    left, wrong, right = unread(look.panels["RequestsPanel"][:1], look.data, rules)
    assert not wrong
    assert not left
    assert right == 3


async def _json_when_looking_back(step: int) -> Data:
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.timeline.seek(step)
        await settled(pilot)
        return json.loads(json.dumps(snapshot(app.timeline.view)))


@pytest.mark.parametrize("step", [0, 100, 254, 480])
async def test_looking_back_shows_what_once_tells_of_that_step(step: int, capsys: pytest.CaptureFixture[str]) -> None:
    seen = await _json_when_looking_back(step)
    assert main(["once", str(make_frames.PATH), "--step", str(step), "--json"]) == 0
    assert seen == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("shown", "value", "same"),
    [
        ("2.6k", 2_566, True), ("2.6k", 2_651, False), ("34.1 %", 0.3412, True), ("34.1 %", 0.342, False),
        ("100 %", 1.0, True), ("<0.1 %", 0.0004, True), ("618 ms", 618_400_000, True), ("618 ms", 619e6, False),
        ("0.3s", 399_999_999, True), ("0.3s", 400_000_001, False), ("1:02:03", 3_723_900_000_000, True),
        ("2m05s", 125e9, True), ("-", None, True), ("-", 3, False), ("0", None, False), ("r14…", "r1434", True),
    ],
)  # fmt: skip
def test_what_is_shown_stands_for_an_interval(shown: str, value: Any, same: bool) -> None:
    assert agrees(shown, value) is same
