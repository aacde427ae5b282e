"""The commands of kvtop: one line each. A command's module is imported only when the command is used.

A module offers ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code), and may offer ``DESCRIPTION`` and
``EXAMPLES``, shown by ``--help``. ``SETTINGS = True``: its options may also come from a file (``cli/config.py``).
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "live": ("kvtop.cli.live", "run a workload and watch every KV block (what plain `kvtop` does)"),
    "replay": ("kvtop.cli.replay", "the TUI on a recorded run, at any moment of it"),
    "serve-api": ("kvtop.cli.serve_api", "an OpenAI-compatible API: real clients drive the embedded engine"),
    "attach": ("kvtop.cli.attach", "a running vLLM or SGLang server in the same TUI, read-only"),
    "doctor": ("kvtop.cli.doctor", "what a server lets kvtop see, and which flag gives the rest"),
    "serve": ("kvtop.cli.serve", "the TUI in a browser on this machine"),
    "once": ("kvtop.cli.once", "one state of a run, as text or JSON, without a screen"),
    "bench": ("kvtop.cli.bench", "run workloads under several policies and write Parquet tables"),
    "compare": ("kvtop.cli.compare", "set runs side by side"),
    "report": ("kvtop.cli.report", "tables and plots of runs as one HTML file"),
    "trace": ("kvtop.cli.trace", "look at a recorded trace, or write it in another format"),
    "why": ("kvtop.cli.why", "tell a request's life from the decision log, in plain words"),
    "calibrate": ("kvtop.cli.calibrate", "fit what a step costs to measured runs, for --executor sim"),
    "calc": ("kvtop.cli.calc", "exact KV cache bytes, and how many blocks and requests fit a GPU"),
    "policies": ("kvtop.cli.policies", "list the scheduling, eviction and allocation policies"),
    "models": ("kvtop.cli.models", "list the models that can be run or calculated with"),
    "workloads": ("kvtop.cli.workloads", "list the built-in workloads"),
}
"""Name -> (module, one line of help), in the order of the help."""

DEFAULT_COMMAND = "live"
