"""Simulations side by side: the figures stand in their column, and everything fits 100 columns."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console
from simulated import simulated

from flashnest.report.simulation import hit_share, print_simulations, short_name, tier_share
from flashnest.report.simulation_plots import bar, sparkline


def _printed(*given) -> str:
    out = StringIO()
    print_simulations(json.loads(json.dumps(given)), Console(file=out, width=100))
    return out.getvalue()


def _line(text: str, label: str) -> list[str]:
    return next(line[34:].split() for line in text.splitlines() if line.startswith(label))


def test_figures_stand_in_their_policys_column():
    text = _printed(simulated("a/dram_only.yaml", dram=800, nvme=None), simulated())
    assert text.splitlines()[0].split() == ["dram_only", "hotcold"]
    assert _line(text, "Questions answered") == ["80.0", "%", "70.0", "%"]
    assert _line(text, "  from DRAM") == ["80.0", "%", "60.0", "%"]
    assert _line(text, "  from NVMe, one step later") == ["-", "10.0", "%"]
    assert _line(text, "Belady's optimum") == ["75.0", "%", "75.0", "%"]
    assert _line(text, "Hits per stored KiB") == ["0.25", "0.25"]
    assert _line(text, "DRAM, most held") == ["1.00", "MiB", "1.00", "MiB"]
    assert _line(text, "NVMe, most held") == ["-", "2.00", "MiB"]
    assert _line(text, "Written to NVMe ") == ["-", "3.00", "MiB"]
    assert _line(text, "Cold reads a step")[-5:] == ["0", "/", "4", "/", "17"]
    assert _line(text, "Lookups of a step (us)")[-3:] == ["26.3", "/", "110"]
    assert _line(text, "Step (ms)")[-3:] == ["22.1", "/", "22.4"]
    assert _line(text, "Records moved") == ["40", "/", "2", "40", "/", "2"]
    assert _line(text, "No room / not admitted")[:3] == ["5", "/", "7"]


def test_everything_fits_100_columns_with_many_policies_and_long_texts():
    rules = [
        [1, "place " + " or ".join(f"tokens = {i}" for i in range(40)) + " in dram"],
        [2, "place otherwise in nvme"],
    ]
    many = [
        simulated(f"conf/tiering/policy_with_a_long_name_{i}.yaml", rules=rules, warnings=["w " * 90]) for i in range(6)
    ]
    text = _printed(*many)
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("Questions answered") == 2


def test_what_is_not_predicted_has_no_line():
    text = _printed(
        simulated(platform=None, step_ms=None, lookup_us=None, belady_hit_share=None, drive_life_years=None)
    )
    assert "Lookups of a step" not in text
    assert "Step (ms)" not in text
    assert "Belady" not in text
    assert _line(text, "Drive life") == ["-"]


def test_a_step_without_a_base_time_is_not_shown_as_a_steps_time():
    only_lookups = {"p50": 0.0263, "p99": 0.1104, "most": 0.4}
    text = _printed(simulated(step_ms=only_lookups))
    assert "Step (ms)" not in text
    assert "Lookups of a step" in text


def test_rules_have_bars_of_their_share_of_hits():
    text = _printed(simulated())
    line = next(line for line in text.splitlines() if "place tokens >= 32" in line)
    assert line.split()[0] == "hotcold"
    assert line.rstrip().endswith("85.7 %")
    assert line.count("█") == 17
    assert not any("promote" in line for line in text.splitlines())


def test_remarks_name_requirements_trials_and_warnings():
    text = _printed(
        simulated(
            requirements=[["require lookup p99 <= 150us", True], ["require dram hits >= 90%", False]],
            would_have={"3": 12},
            warnings=["most hits on NVMe"],
        )
    )
    assert "kept:    require lookup p99 <= 150us" in text
    assert "BROKEN:  require dram hits >= 90%" in text
    assert "trial:   rule 3 would have taken 12 records: promote hits >= 3" in text
    assert "warning: most hits on NVMe" in text


def test_a_policy_that_was_asked_nothing_has_no_shares():
    idle = simulated(questions=0, dram=0, nvme=0)
    assert hit_share(idle) is None
    assert tier_share(idle, "dram") is None
    assert _line(_printed(idle), "Questions answered") == ["-"]


def test_sparkline_scales_to_the_top_and_averages_what_does_not_fit():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, 1.0], top=2.0) == "▅▅"
    assert sparkline([0.0, 1.0, 0.0, 1.0], width=2, top=1.0) == "▅▅"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), width=48)) == 48


def test_bar_counts_eighths():
    assert bar(1.0, 4) == "████"
    assert bar(0.5, 4) == "██"
    assert bar(1 / 32, 4) == "▏"
    assert bar(0.0, 4) == ""
    assert bar(7.0, 4) == "████"


def test_short_name_is_the_files_stem():
    assert short_name("flashnest/conf/tiering/hotcold.yaml") == "hotcold"
    assert short_name("hotcold") == "hotcold"
    assert short_name("x/.tier") == ".tier"
