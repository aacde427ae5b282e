"""Policies from a user's own Python file: what they may be, what a run says about them, and every error in one line."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from policy_helpers import distinct, make_engine, serve, submit

from kvtop.cli.main import main
from kvtop.engine.api import ConfigError, Engine, KvtopError, UnknownName
from kvtop.engine.policies.registry import BATCH, EVICTION, QUEUE, VICTIM, policy_label
from kvtop.results.rundir import run_dir_name
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "my_policy.py"


DATACLASS = """
    from __future__ import annotations
    from dataclasses import dataclass

    @dataclass
    class mine:
        sign: int = -1
        dynamic = False

        def __call__(self, seq, context):
            return (self.sign * seq.num_prompt, "x", (1.5,))
"""


def policy_file(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(dedent(text))
    return str(path)


def order(policy: str, **config: object) -> list[str]:
    """Who of three prompts of 3, 9 and 5 tokens is admitted when, with one seat."""
    engine = make_engine(32, 4, policy=policy, max_num_seqs=1, **config)
    for index, length in enumerate((3, 9, 5)):
        submit(engine, distinct(length, index), 2, f"{length}")
    admitted = []
    while engine.has_requests:
        admitted += engine.step().admitted
    return admitted


# -- what a policy may be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "def mine(seq, context):\n    return (-seq.num_prompt,)",
        "class mine:\n    def __call__(self, seq, context):\n        return (-seq.num_prompt,)",
        "class C:\n    def __call__(self, seq, context):\n        return (-seq.num_prompt,)\nmine = C()",
        "mine = lambda seq, context: (-seq.num_prompt,)",
        DATACLASS,
    ],
)
def test_a_function_a_class_an_instance_and_a_dataclass_work(tmp_path: Path, source: str) -> None:
    assert order(policy_file(tmp_path, source) + ":mine") == ["9", "5", "3"]
    assert not list(tmp_path.glob("__pycache__"))


def test_ties_go_in_order_of_submission_without_the_authors_help(tmp_path: Path) -> None:
    assert order(policy_file(tmp_path, "def mine(seq, context): return ()") + ":mine") == ["3", "9", "5"]


def test_parameters_have_defaults_and_can_be_set(tmp_path: Path) -> None:
    name = policy_file(
        tmp_path,
        """
        PARAMS = {"sign": 1, "scale": 1.0}
        def mine(seq, context):
            return (context.params["sign"] * context.params["scale"] * seq.num_prompt,)
        """,
    )
    name += ":mine"
    assert order(name) == ["3", "5", "9"]
    assert order(name, policy_params={"sign": -1, "scale": 2}) == ["9", "5", "3"]
    with pytest.raises(UnknownName, match="did you mean 'sign'"):
        order(name, policy_params={"sing": 1})
    with pytest.raises(ConfigError, match="sign is 'up', expected int"):
        order(name, policy_params={"sign": "up"})


def test_prepare_is_called_once_a_step_and_what_it_leaves_is_used(tmp_path: Path) -> None:
    name = policy_file(
        tmp_path,
        """
        class mine:
            def __init__(self):
                self.steps = []
            def prepare(self, waiting, context):
                assert context.step not in self.steps
                self.steps.append(context.step)
                context.memo["longest"] = max((s.num_prompt for s in waiting), default=0)
            def __call__(self, seq, context):
                return (seq.num_prompt != context.memo.get("longest"),)
        """,
    )
    assert order(name + ":mine") == ["9", "5", "3"]


def test_a_static_key_is_asked_for_once(tmp_path: Path) -> None:
    calls = """
        class mine:
            dynamic = {dynamic}
            asked = 0
            def __call__(self, seq, context):
                mine.asked += 1
                assert mine.asked <= {limit}
                return (seq.num_prompt,)
    """
    static = policy_file(tmp_path, calls.format(dynamic=False, limit=3), "static.py")
    assert order(static + ":mine") == ["3", "5", "9"]
    with pytest.raises(ConfigError, match="AssertionError"):
        order(policy_file(tmp_path, calls.format(dynamic=True, limit=3), "dynamic.py") + ":mine")


def test_victims_evictions_and_batches_may_come_from_a_file_too(tmp_path: Path) -> None:
    name = policy_file(
        tmp_path,
        """
        def newest_block(block, cache):
            return (-cache.published_step[block],)
        def shortest(seq, context):
            return (-seq.num_prompt,)
        waiting_first = ("admit", "chunks", "decodes")
        """,
    )
    assert BATCH.get(f"{name}:waiting_first")[0].rule == ("admit", "chunks", "decodes")
    assert VICTIM.get(f"{name}:shortest")[0].rule is not None
    engine = make_engine(4, 4, eviction=f"{name}:newest_block", victim=f"{name}:shortest")
    for salt in range(3):
        serve(engine, distinct(5, salt))
    submit(engine, distinct(8, 9))
    assert [e.age_steps for e in engine.step().evicted] == [1]


def test_the_example_of_the_documentation_works_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "-w", "poisson-shared-prefix", "--limit", "12", "--executor", "null", "--num-blocks", "64"]
    mine = ["-p", f"{EXAMPLE}:Shortest", "-p", "fcfs", "--victim", f"{EXAMPLE}:short_prompts_first"]
    assert main([*command, *mine, "--policy-param", "patience_steps=50", "-o", str(tmp_path / "out")]) == 0
    runs = {json.loads(path.read_text())["policy"]: path for path in tmp_path.glob("out/*/run.json")}
    label = policy_label(f"{EXAMPLE}:Shortest")
    assert runs.keys() == {"fcfs", label}
    assert label.startswith("my_policy.py:Shortest@")
    manifest = json.loads(runs[label].read_text())
    assert manifest["policy_params"] == {"patience_steps": 50}
    assert manifest["victim"] == policy_label(f"{EXAMPLE}:short_prompts_first")
    assert runs[label].parent.parent == tmp_path / "out", "a / of the file's path made a folder"
    assert f"{EXAMPLE}:Shortest" in capsys.readouterr().out


# -- what a run is called --------------------------------------------------------------------------------------------


def _dir_name(policy: str) -> str:
    return run_dir_name(RunSpec(workload=WorkloadSpec(name="default"), engine={"policy": policy}))


def test_a_run_is_named_by_the_files_content_and_not_by_its_folder(tmp_path: Path) -> None:
    text = "def mine(seq, context): return ()"
    for folder in "ab":
        (tmp_path / folder).mkdir()
    first, second = (policy_file(tmp_path / folder, text) + ":mine" for folder in "ab")
    assert policy_label(first) == policy_label(second)
    assert _dir_name(first) == _dir_name(second)
    assert "/" not in _dir_name(first)
    before = _dir_name(first)
    policy_file(tmp_path / "a", text + "  # changed")
    assert policy_label(first) != policy_label(second)
    assert _dir_name(first) != before
    assert policy_label("lpm") == "lpm"


# -- errors ----------------------------------------------------------------------------------------------------------


def _error(name: str) -> str:
    with pytest.raises(KvtopError) as caught:
        order(name)
    text = str(caught.value)
    assert "\n" not in text
    assert name.rpartition(":")[0] in text or name in text
    assert caught.value.exit_code == 2
    return text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def min(seq, context): return ()\nimport os", "did you mean 'min'? (valid: min)"),
        ("def mine(seq, context)", "does not load: SyntaxError"),
        ("import no_such_module_at_all", "does not load: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise SystemExit(3)", "does not load: SystemExit: 3"),
        ("mine = 3", "mine is a int, expected a key function"),
        ("class mine:\n    def __init__(self, x): pass", "mine() fails: TypeError"),
        ("class mine: pass", "expected a key function"),
        ("PARAMS = 3\ndef mine(seq, context): return ()", "PARAMS is 3, expected a dict"),
        ("def mine(seq, context): return 1 / 0", "fails at request 3: ZeroDivisionError: division by zero"),
        ("def mine(seq): return ()", "fails at request 3: TypeError"),
        ("def mine(seq, context): return seq.prompt", "fails at request 3: AttributeError"),
        ("def mine(seq, context): return seq.num_prompt", "answers 3 for request 3, expected a tuple"),
        ("def mine(seq, context): return (None,)", "None has no place in an order"),
        ("def mine(seq, context): return (float('nan'),)", "nan has no place in an order"),
        (
            "def mine(seq, context): return ('x' if seq.num_prompt == 9 else 1,)",
            "a text where another answer has a number",
        ),
        ("def mine(seq, context): return ((1, 'x' if seq.num_prompt == 9 else 1),)", "for request 9: a text where"),
        (
            "def prepare(w, c): raise ValueError('no')\ndef mine(seq, context): return ()",
            "fails in prepare: ValueError: no",
        ),
    ],
)
def test_whatever_is_wrong_with_a_file_is_one_line(tmp_path: Path, source: str, message: str) -> None:
    assert message in _error(policy_file(tmp_path, source) + ":mine")


def test_a_missing_file_a_folder_and_a_missing_name_are_one_line(tmp_path: Path) -> None:
    assert "no such file" in _error(f"{tmp_path}/none.py:mine")
    (tmp_path / "folder.py").mkdir()
    assert "cannot read" in _error(f"{tmp_path}/folder.py:mine")
    assert "expected" in _error(policy_file(tmp_path, "def mine(seq, context): return ()"))
    with pytest.raises(ConfigError, match="is no order of"):
        BATCH.get(policy_file(tmp_path, "mine = ('admit', 'decodes')") + ":mine")
    with pytest.raises(ConfigError, match=r"eviction policy .* answers 3 for block"):
        EVICTION.get(policy_file(tmp_path, "def mine(block, cache): return 3") + ":mine")[0].rule(0, None)  # type: ignore[arg-type]


def test_an_error_while_running_ends_the_run_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = policy_file(tmp_path, "def mine(seq, context):\n    return (1 // (context.step < 5),)") + ":mine"
    command = ["bench", "-w", "poisson-shared-prefix", "--limit", "12", "--executor", "null", "--num-blocks", "64"]
    assert main([*command, "-p", name, "-o", str(tmp_path / "out")]) != 0
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if "ZeroDivisionError" in line]
    assert f"queue policy {name!r} fails at request r" in line
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("option", "given", "nearest"),
    [
        ("-p", "lmp", "lpm"),
        ("--eviction", "lur", "lru"),
        ("--victim", "chepest", "cheapest"),
        ("--batch-policy", "decode_first", "decode-first"),
    ],
)
@pytest.mark.parametrize("command", [["bench", "-o", "unused"], ["live"]])
def test_an_unknown_name_is_answered_with_the_nearest(
    command: list[str], option: str, given: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "-w", "poisson-shared-prefix", "--executor", "null", option, given]) == 2
    assert f"{given!r}; did you mean {nearest!r}?" in capsys.readouterr().err


def test_an_engine_answers_with_the_nearest_too() -> None:
    for key, given, nearest in (
        ("policy", "dfs_weight", "dfs-weight"),
        ("eviction", "fivo", "fifo"),
        ("victim", "mostblocks", "most-blocks"),
    ):
        with pytest.raises(UnknownName, match=f"did you mean '{nearest}"):
            make_engine(4, 4, **{key: given})
    assert isinstance(make_engine(4, 4, policy="lpm", policy_params={"aging_steps": 3}), Engine)
    with pytest.raises(UnknownName, match="did you mean 'aging_steps'"):
        make_engine(4, 4, policy="lpm", policy_params={"aging": 3})
    assert QUEUE.get("lpm", {"aging_steps": 3})[1] == {"aging_steps": 3}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["aging_steps=x"], "expected int, such as 256"),
        (["aging_stops=3"], "did you mean 'aging_steps'?"),
        (["aging_steps"], "expected NAME=VALUE"),
    ],
)
def test_parameters_on_the_command_line_are_checked(
    params: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [part for param in params for part in ("--policy-param", param)]
    assert main(["bench", "-w", "default", "--executor", "null", "-p", "lpm", "-o", "unused", *options]) == 2
    assert message in capsys.readouterr().err


# -- kvtop policies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_list_of_policies_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["policies"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= max(columns, 72)
    monkeypatch.delenv("COLUMNS")
    assert main(["policies"]) == 0
    unwrapped = capsys.readouterr().out
    for kind in (QUEUE, VICTIM, BATCH, EVICTION):
        for name, meaning in kind.meanings().items():
            assert sum(line.split()[:1] == [name] and line.endswith(meaning) for line in unwrapped.splitlines()) == 1


def test_the_list_of_policies_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)
    assert groups["queue"] == QUEUE.meanings()
    assert groups["eviction"] == EVICTION.meanings()
    assert set(groups) == {"queue", "batch", "victim", "eviction", "allocator"}
