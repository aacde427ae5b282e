"""Sizes and counts are read strictly."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from kvtop.cli.text import format_bytes, format_ns, significant, table
from kvtop.cli.values import count, count_or_zero, fraction, not_negative, positive, size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2 * 2**30),
        ("512MiB", 512 * 2**20),
        ("80e9", 80 * 10**9),
        ("80E+9", 80 * 10**9),
        ("1.5GB", 1_500_000_000),
        ("0.1TB", 10**11),
        ("1.5 KiB", 1536),
        ("3gib", 3 * 2**30),
        ("123", 123),
        ("123B", 123),
    ],
)
def test_sizes_are_exact(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "-1GiB", "+1", "0", "1G", "1GiBs", "1e", "nan", "inf", "1.5", "0.3B", "2 0MiB", "1e30",
             "1,5GB", "0x10"]
)  # fmt: skip
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        size_bytes(text)


@pytest.mark.parametrize(
    ("read", "text", "expected"), [(count, "70e9", 70 * 10**9), (count, "8_000", 8000), (count_or_zero, "0", 0)]
)
def test_counts(read: Callable[[str], int], text: str, expected: int) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (count, "0"), (count, "-1"), (count, "1.5"), (count, "x"), (count, ""), (count, "inf"), (count, "1e99"),
        (count_or_zero, "-1"),
        (positive, "0"), (positive, "nan"), (positive, "inf"), (positive, "x"), (not_negative, "-0.1"),
        (not_negative, "nan"),
        (fraction, "0"), (fraction, "1.01"), (fraction, "nan"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        read(text)


def test_units_are_readable() -> None:
    assert [format_ns(value) for value in (0, 950, 12_300, 999_600, 1_234_000, 999_499_999, 999_500_000, 83e9)] == [
        "0 ms", "0.950 us", "12.3 us", "1.00 ms", "1.23 ms", "999 ms", "1.00 s", "83.0 s",
    ]  # fmt: skip
    assert [format_bytes(value) for value in (0, 1023, 1024, 42_949_672_960, 2**50)] == [
        "0 B", "1023 B", "1.00 KiB", "40.00 GiB", "1,024.00 TiB",
    ]  # fmt: skip
    assert [significant(value) for value in (0.01234, 1.005, 99.95, 12_345.6)] == ["0.0123", "1.00", "100", "12,346"]
    assert format_ns(None) == format_bytes(None) == significant(None) == "-"


def test_tables_line_up_without_trailing_blanks() -> None:
    text = table([["a", "1"], ["long name", "12,345", "x"]], header=["", "value", "note"])
    assert text.splitlines() == [
        "            value  note",
        "---------  ------  ----",
        "a               1",
        "long name  12,345     x",
    ]
