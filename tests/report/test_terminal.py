"""The end-of-run table fits 80 columns, names what is emulated, and prints from a saved report too."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from flashnest.report.figures import bytes_text, clock_text, count_text, number_text, share_text, short_count_text
from flashnest.report.model import EnergyFigures, MoveFigures, ReportInput, build_report
from flashnest.report.terminal import print_report


def _printed(given: ReportInput, width: int = 80) -> str:
    out = StringIO()
    print_report(json.loads(json.dumps(build_report(given))), Console(file=out, width=width))
    return out.getvalue()


def _line(text: str, label: str) -> str:
    return next(line.rstrip() for line in text.splitlines() if line.startswith(label))


@pytest.mark.parametrize("which", ["given", "bare"])
def test_report_fits_80_columns_without_a_cut_word(which: str, request: pytest.FixtureRequest) -> None:
    text = _printed(request.getfixturevalue(which))
    assert max(map(len, text.splitlines())) <= 80
    assert "\u2026" not in text


def test_report_shows_its_figures(given: ReportInput) -> None:
    text = _printed(given)
    assert "forward pass: replays a reference text" in text
    assert _line(text, "Output tokens per second").split()[-1] == "16.0"
    assert _line(text, "TTFT").split()[-4:] == ["500", "500", "500", "500"]
    assert _line(text, "dram").split() == [
        "dram",
        "12,345,678",
        "50.0",
        "%",
        "7.00",
        "GiB",
        "14.0",
        "GiB",
        "423",
        "42.3",
        "%",
    ]
    assert _line(text, "Acceptance length").split()[-1] == "3.00"
    assert _line(text, "Prompt / reused tokens").endswith("400 / 256 (64.0 %)")
    assert _line(text, "Page cache change").endswith("-3.00 MiB")
    assert _line(text, "Requests ").endswith("4 (1 cancelled)")
    assert "Interrupted" not in text
    assert "vram" not in text
    assert "Energy" not in text


def test_report_shows_the_cold_tier_and_what_rules_moved(given: ReportInput) -> None:
    text = _printed(given)
    assert "(slots, io_uring)" in " ".join(text.split())
    assert "9,000 asked, 93.3 % absent, 0.3 % read in vain" in " ".join(text.split())
    assert "promote hits >= 3" in text
    assert next(line for line in text.splitlines() if line.startswith("Rule")).split()[1:] == [
        "moved",
        "refused",
        "ping-pong",
    ]
    assert "Rule" not in _printed(replace(given, moves=()))


def test_report_of_an_interrupted_run_says_so_and_shows_no_number_it_lacks(bare: ReportInput) -> None:
    text = _printed(bare)
    assert "Interrupted" in text
    assert _line(text, "TTFT").split()[-4:] == ["-"] * 4
    assert _line(text, "Disk utilisation").split()[-1] == "-"
    assert "Emulated" not in text
    assert "Cold reads" not in text


def test_energy_is_shown_where_it_is_known(given: ReportInput) -> None:
    text = _printed(replace(given, energy=EnergyFigures(160.0, "nvml: GPU 0")))
    assert _line(text, "Energy per 1000 tokens (J)").endswith("5,000 (nvml: GPU 0)")


def test_markup_in_names_is_printed_not_obeyed(given: ReportInput) -> None:
    assert "[red]mine[/red]" in _printed(replace(given, tiering="[red]mine[/red]"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(None), "-"),
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(1023), "1.00 KiB"),
        (bytes_text(14 << 30), "14.0 GiB"),
        (bytes_text(-(512 << 20)), "-512 MiB"),
        (bytes_text(5000 << 40), "5,000 TiB"),
        (count_text(1234567), "1,234,567"),
        (short_count_text(950), "950"),
        (short_count_text(12_345_678), "12.3 M"),
        (short_count_text(None), "-"),
        (number_text(0.514), "0.51"),
        (number_text(86.42), "86.4"),
        (number_text(1234.5), "1,234"),
        (share_text(0.4123), "41.2 %"),
        (clock_text(65.9), "1:05"),
        (clock_text(3661), "1:01:01"),
    ],
)
def test_number_reads_as_people_write_it(text: str, expected: str) -> None:
    assert text == expected


def test_a_trial_shows_what_it_would_have_moved(given: ReportInput) -> None:
    trial = MoveFigures(
        "promote hits >= 3 from nvme to dram warn", "promote", 0, 0, 0, 0, 0, is_trial=True, would_have=41
    )
    assert "would 41" in _printed(replace(given, moves=(trial,)))
