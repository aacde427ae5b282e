"""Service-level objectives of single requests: which of them met theirs, and goodput.

``ttft<2s,tpot<50ms`` is for every request; ``chat:ttft<1s`` for those of class ``chat``, in place of the general one.

Judged is every request that has an objective, except those the run itself cut off: failed, rejected, aborted and empty
ones missed theirs. An objective without a value (TPOT and the largest ITL of a one-token answer) does not apply; a
request that none applies to, or whose class has none, is not judged. All of them are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvtop.analysis.objectives import Objective, parse
from kvtop.analysis.stats import ratio
from kvtop.engine.errors import UsageError

COLUMNS = {
    "ttft": "ttft_ns",
    "ttft_submit": "ttft_submit_ns",
    "queue": "queue_total_ns",
    "tpot": "tpot_ns",
    "itl_max": "itl_max_ns",
    "e2e": "e2e_ns",
}
"""What an objective may bound, with its column of requests.parquet."""

_CLASS = re.compile(r"\s*([^<>=:,]+?)\s*:(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives by class; those under None are for every class that has none of its own."""

    by_class: dict[str | None, list[Objective]]
    texts: list[str]

    def of(self, klass: str | None) -> list[Objective]:
        """The objectives of a class; empty: none."""
        return self.by_class.get(klass or "", self.by_class.get(None, []))

    def judge(self, row: Mapping[str, Any]) -> bool | None:
        """Whether a row of requests.parquet met its objectives; None: it is not judged."""
        objectives = self.of(row["class"])
        if row["status"] == "cutoff" or not objectives:
            return None
        if row["status"] != "ok":
            return False
        held = [held for o in objectives if (held := o.holds(row[COLUMNS[o.metric]])) is not None]
        return all(held) if held else None


def parse_slo(texts: Sequence[str], option: str = "--slo") -> Slo:
    """Objectives from the command line or a manifest, one or several a text.

    Raises:
        UsageError: no condition, a bound without its unit, a class given twice.
        UnknownName: a metric that a single request does not have, with the nearest one.
    """
    units = dict.fromkeys(COLUMNS, "ns")
    by_class: dict[str | None, list[Objective]] = {}
    for text in texts:
        match = _CLASS.fullmatch(text)
        klass = match[1] if match else None
        if klass in by_class:
            whose = "every class" if klass is None else f"class {klass!r}"
            raise UsageError(f"{option}: objectives of {whose} are given twice, expected one list: ttft<2s,tpot<50ms")
        by_class[klass] = parse(match[2] if match else text, units, option=option)
    return Slo(by_class, ["".join(text.split()) for text in texts])


@dataclass(frozen=True, slots=True)
class Share:
    """``met`` of ``judged`` requests."""

    met: int
    judged: int

    @property
    def attainment(self) -> float | None:
        return ratio(self.met, self.judged)


@dataclass(frozen=True, slots=True)
class Goodput:
    """What became of the objectives in one run."""

    slo: list[str]
    met: int
    judged: int  # the denominator: also requests that failed
    requests_s: float | None  # met / duration of the run
    cutoff: int  # not judged: the run ended first
    no_objective: int  # not judged: none for the class, or none that applies
    not_applicable: dict[str, int] = field(default_factory=dict)  # by metric: ok requests without a value
    missed: dict[str, int] = field(default_factory=dict)  # by metric; "status": requests that did not succeed
    classes: dict[str, Share] = field(default_factory=dict)  # empty where all requests are of one class

    @property
    def attainment(self) -> float | None:
        return ratio(self.met, self.judged)

    def as_json(self) -> dict[str, Any]:
        """Plain data, attainments included."""
        classes = {name: asdict(share) | {"attainment": share.attainment} for name, share in self.classes.items()}
        return asdict(self) | {"attainment": self.attainment, "classes": classes}


def goodput(rows: Sequence[Mapping[str, Any]], slo: Slo, duration_ns: int | None) -> Goodput:
    """Judge the rows of requests.parquet (``COLUMNS``, class and status are read)."""
    verdicts = [(row, slo.judge(row)) for row in rows]
    met = sum(verdict is True for _, verdict in verdicts)
    judged = sum(verdict is not None for _, verdict in verdicts)
    cutoff = sum(row["status"] == "cutoff" for row in rows)
    per_second = ratio(1_000_000_000, duration_ns)
    return Goodput(
        slo=slo.texts,
        met=met,
        judged=judged,
        requests_s=None if per_second is None else met * per_second,
        cutoff=cutoff,
        no_objective=len(rows) - judged - cutoff,
        not_applicable=_count_applied(rows, slo, None),
        missed=_missed(rows, slo),
        classes=_by_class(verdicts),
    )


def _count_applied(rows: Iterable[Mapping[str, Any]], slo: Slo, verdict: bool | None) -> dict[str, int]:
    """By metric: objectives of ok requests that came to ``verdict``."""
    found: Counter[str] = Counter()
    for row in rows:
        if row["status"] == "ok":
            found.update({o.metric for o in slo.of(row["class"]) if o.holds(row[COLUMNS[o.metric]]) is verdict})
    return dict(sorted(found.items()))


def _missed(rows: Sequence[Mapping[str, Any]], slo: Slo) -> dict[str, int]:
    failed = sum(row["status"] not in ("ok", "cutoff") and bool(slo.of(row["class"])) for row in rows)
    return _count_applied(rows, slo, False) | ({"status": failed} if failed else {})


def _by_class(verdicts: Sequence[tuple[Mapping[str, Any], bool | None]]) -> dict[str, Share]:
    names = sorted({row["class"] or "" for row, _ in verdicts})
    if len(names) < 2:
        return {}
    found = {name: [verdict for row, verdict in verdicts if (row["class"] or "") == name] for name in names}
    return {
        name: Share(sum(v is True for v in values), sum(v is not None for v in values))
        for name, values in found.items()
    }
