"""``--metrics-port`` of ``live`` and ``bench``: what the run tells Prometheus while it goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvtop.cli.values import port_number

if TYPE_CHECKING:
    from kvtop.bench.runner import MakeSession
    from kvtop.exporter.meter import Exporter


def add_metrics_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("metrics")
    group.add_argument(
        "--metrics-port", type=port_number, metavar="P",
        help="serve /metrics for Prometheus on this port while it runs (0: a free one), under vLLM's names",
    )  # fmt: skip
    group.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="H", help="address to serve it on (default 127.0.0.1)"
    )


@contextmanager
def open_exporter(args: argparse.Namespace) -> Iterator[Exporter | None]:
    """The exporter that the options ask for, served as long as this lasts; None: they ask for none.

    Raises:
        UsageError: the address cannot be listened on.
    """
    if args.metrics_port is None:
        yield None
        return
    from kvtop.exporter.meter import Exporter
    from kvtop.exporter.server import MetricsServer

    exporter = Exporter()
    server = MetricsServer(exporter.render, args.metrics_host, args.metrics_port)
    print(f"kvtop: metrics at {server.url}", file=sys.stderr)
    try:
        yield exporter
    finally:
        server.close()


def session_maker(exporter: Exporter | None) -> MakeSession:
    """What makes the session of a run: one whose events are counted where there is an exporter."""
    if exporter is None:
        from kvtop.run.session import RunSession

        return RunSession
    from functools import partial

    from kvtop.exporter.meter import MeteredSession

    return partial(MeteredSession, exporter=exporter)
