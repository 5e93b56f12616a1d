"""T201, T202 and T203: what is expected against room, latency and endurance, with the arithmetic in the message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashnest.cli.commands import flash_nest
from flashnest.cli.policy.platforms import platform_facts
from flashnest.policy.budget_goals import check_latency, check_writes
from flashnest.policy.budgets import check_capacity, count_words
from flashnest.policy.compile import Policy, compile_policy
from flashnest.policy.diagnostics import Diagnostic, Severity
from flashnest.policy.expectations import ExpectedLookups, ExpectedRecords, ExpectedWrites, TierRoom
from flashnest.policy.render import render_one
from flashnest.record import Tier

PLATFORM = platform_facts("rtx4090")
SOURCE = "counts from the test"


def records(counts: dict[int, float], learnt: list[int] | None = None) -> ExpectedRecords:
    n = len(counts)
    return ExpectedRecords(
        tokens=np.array(list(counts), np.uint8),
        kind=np.zeros(n, np.uint8),
        namespace=np.zeros(n, np.uint32),
        nbytes=np.full(n, 72, np.uint32),
        counts=np.array(list(counts.values()), np.float64),
        source=SOURCE,
        learnt=None if learnt is None else np.array(learnt, np.int64),
    )


def rooms(**sizes: int) -> dict[Tier, TierRoom]:
    """Tiers of so many records, 100 bytes each."""
    return {Tier[name.upper()]: TierRoom(100 * size, size, 100.0, "as tested") for name, size in sizes.items()}


def capacity(text: str, counts: dict[int, float], learnt: list[int] | None = None, **sizes: int) -> list[Diagnostic]:
    return check_capacity(compile_policy(text, source="t.tier"), records(counts, learnt), rooms(**sizes), PLATFORM)


def test_the_finding_shows_the_arithmetic_the_source_and_a_fix_with_its_number() -> None:
    text = "param long = 16 tokens\nplace tokens >= long in dram\nplace otherwise in nvme"
    (found,) = capacity(text, {8: 3e6, 16: 80e6, 32: 20e6}, dram=50_000_000, nvme=90_000_000)
    assert render_one(found) == (
        "error[T201]: 9.3 GiB expected in `dram`, platform `rtx4090` gives it 4.7 GiB: 50.0M records are refused\n"
        "  --> t.tier:2:1\n"
        "   |\n"
        " 2 | place tokens >= long in dram\n"
        "   | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ 100.0M records x 100.0 B = 9.3 GiB\n"
        "   |\n"
        "   = note: counts from the test\n"
        "   = note: a record takes 100.0 B there: as tested\n"
        "   = help: set `long` to 32 tokens (predicted 1.9 GiB), or add `else nvme` (predicted 4.9 GiB of 8.4 GiB "
        "there), or give `dram` 9.3 GiB (`tiers.dram.capacity`)"
    )


def test_the_rule_with_the_largest_part_is_pointed_at_and_the_others_are_summed() -> None:
    text = "place tokens >= 32 in dram\nplace tokens >= 16 in dram\nplace tokens < 4 in reject\nplace otherwise in dram"
    (found,) = capacity(text, {2: 1e9, 8: 10, 16: 300, 32: 200}, dram=400)
    assert found.primary is not None
    assert (found.line, found.primary.text) == (2, "300 records x 100.0 B = 29.3 KiB; other rules 20.5 KiB")


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("place otherwise in dram", "dram"),
        ("place otherwise in dram else nvme", ""),
        ("place otherwise in dram else reject", "dram"),
        ("place otherwise in vram else dram else nvme", ""),
        ("place otherwise in vram else dram", "dram"),
        ("place otherwise in dram\nevict from dram when fill > 95% until fill < 90%", ""),
        ("place otherwise in dram\nevict from dram when fill > 95% until fill < 90% warn", "dram"),
        ("place otherwise in dram\nevict idle > 1d from dram", "dram"),
        ("place otherwise in dram\ndemote from dram to nvme when fill > 95% until fill < 90%", ""),
        ("place otherwise in vram\ndemote from vram to dram when fill > 95% until fill < 90%", "vram"),
        ("place otherwise in dram after 2 hits in 1h", ""),
    ],
)
def test_only_what_finds_no_room_anywhere_is_refused(text: str, refused: str) -> None:
    found = capacity(text, {8: 60, 16: 90}, learnt=[1, 2], vram=40, dram=100, nvme=100)
    assert [one.message.split("`")[1] for one in found] == ([refused] if refused else [])


def test_a_bound_from_above_is_lowered_and_one_that_frees_nothing_is_not_offered() -> None:
    (found,) = capacity(
        "place tokens <= 16 in dram\nplace otherwise in nvme", {4: 50, 8: 60, 16: 70}, dram=110, nvme=70
    )
    assert found.notes[-1].text.startswith("change `tokens <= 16` to `tokens <= 8` (predicted 10.7 KiB), or ")
    (found,) = capacity("place tokens >= 8 in dram\nplace otherwise in dram", {4: 50, 8: 60}, dram=80)
    assert found.notes[-1].text == "give `dram` 10.7 KiB (`tiers.dram.capacity`)"


def test_a_tier_larger_than_the_machine_is_told_and_unified_memory_is_one() -> None:
    policy = compile_policy("place otherwise in vram else dram")
    room = rooms(vram=100, dram=10**9)
    assert check_capacity(policy, records({8: 1}), room, replace(PLATFORM, memory_dram_bytes=None)) == []
    (found,) = check_capacity(policy, records({8: 1}), room, PLATFORM)
    assert found.message == "`dram` gets 93.1 GiB, platform `rtx4090` has 64.0 GiB of memory for it"
    shared = replace(PLATFORM, unified_memory=True, memory_dram_bytes=10**11, memory_vram_bytes=None)
    (found,) = check_capacity(policy, records({8: 1}), room, shared)
    assert found.message.startswith("`vram` and `dram` get 93.1 GiB")


GOALS = """place tokens >= 32 in dram
place otherwise in nvme
require lookup p99 <= 150us
require lookup p50 <= 100us warn
require step p99 <= 1ms
require nvme writes <= 2 MB/s
require nvme life >= 5y
require dram hits >= 90%"""


def lookups(p99_s: float, p50_s: float = 20e-6, *, blocking: bool = True) -> ExpectedLookups:
    return ExpectedLookups(512, 54.0, {2: 54.0}, p50_s, p99_s, 90e-6, 40e-6, blocking)


def goals() -> Policy:
    return compile_policy(GOALS, source="t.tier")


def test_a_latency_that_cannot_hold_says_what_takes_the_time_and_what_would_be_faster() -> None:
    assert check_latency(goals(), lookups(140e-6), PLATFORM, SOURCE) == []
    (found,) = check_latency(goals(), lookups(690e-6), PLATFORM, SOURCE)
    assert render_one(found) == (
        "error[T202]: `require lookup p99 <= 150us` cannot hold on `rtx4090`: lookup p99 is 690.0 us by prediction\n"
        "  --> t.tier:3:1\n"
        "   |\n"
        " 2 | place otherwise in nvme\n"
        "   | ----------------------- 54.0 of 54.0 reads a step are for its records\n"
        " 3 | require lookup p99 <= 150us\n"
        "   | ^^^^^^^^^^^^^^^^^^^^^^^^^^^ 512 keys a step in memory, 40.0 us; 54.0 NVMe reads a step x 86.0 us, "
        "one after another (p99 of a read 430.0 us)\n"
        "   |\n"
        "   = note: counts from the test\n"
        "   = help: `cold_reads: async` under `tiers.nvme` predicts 90.0 us"
    )


def test_each_latency_requirement_is_judged_by_its_own_prediction_and_level() -> None:
    found = check_latency(goals(), lookups(2e-3, 300e-6, blocking=False), PLATFORM, SOURCE)
    assert [(one.line, one.severity) for one in found] == [
        (3, Severity.ERROR),
        (4, Severity.WARNING),
        (5, Severity.ERROR),
    ]
    assert "the lookups of a step alone take 2.0 ms" in found[2].message
    assert found[0].primary is not None
    assert found[0].primary.text.endswith("54.0 NVMe reads a step handed to the drive, not waited for")
    slow = replace(lookups(2e-3), without_reads_s=200e-6)
    assert "no placement can" in check_latency(goals(), slow, PLATFORM, SOURCE)[0].notes[-1].text


def writes(rate: float, each: float = 8600.0) -> ExpectedWrites:
    return ExpectedWrites(rate, {2: rate}, 0.0, each, "lmdb", "slots", each / 2, rate / 4, 86400.0)


def test_writes_are_judged_by_rate_and_by_the_life_of_the_drive() -> None:
    assert check_writes(goals(), writes(100), PLATFORM, SOURCE) == []
    rate, life = check_writes(goals(), writes(45e6 / 8600), PLATFORM, SOURCE)
    assert rate.message == "writes to NVMe: 45.0 MB/s predicted, `require nvme writes <= 2 MB/s`"
    assert life.message == "writes to NVMe: the drive lasts 308.6 d, `require nvme life >= 5y`"
    assert life.primary is not None
    assert life.primary.text == "5232.6 records/s x 8.6 kB = 45.0 MB/s: that writes 1200 TB in 308.6 d"
    assert [note.text for note in life.notes] == [
        "counts from the test; they come within 1.0 d",
        "engine `lmdb` writes 8.6 kB for a record",
        "`engine: slots` predicts 22.5 MB/s, 1.7 y, or admit records `after 2 hits` (predicted 11.2 MB/s), "
        "or place fewer of them there",
    ]


def test_without_a_requirement_a_drive_that_does_not_last_its_warranty_is_a_warning() -> None:
    policy = compile_policy("place tokens > 99 in dram\nplace otherwise in nvme", source="t.tier")
    assert check_writes(policy, writes(800), PLATFORM, SOURCE) == []
    (found,) = check_writes(policy, writes(1000), PLATFORM, SOURCE)
    assert (found.code, found.severity, found.line) == ("T203", Severity.WARNING, 2)
    assert found.message == "writes to NVMe: the drive lasts 4.4 y, its endurance is warranted for 5.0 y"
    assert check_writes(policy, replace(writes(1000), within_s=60.0), PLATFORM, SOURCE) == []  # a burst
    unknown = replace(PLATFORM, nvme_endurance_bytes=None)
    assert check_writes(policy, writes(1000), unknown, SOURCE) == []
    found = check_writes(goals(), writes(10), unknown, SOURCE)[0]
    assert "cannot be checked" in found.message
    assert found.severity is Severity.WARNING


def test_a_flush_with_a_limit_writes_no_faster() -> None:
    slow = replace(writes(1000), most_bytes_per_s=1.9e6)
    assert check_writes(goals(), slow, PLATFORM, SOURCE) == []
    rate, _ = check_writes(goals(), replace(slow, most_bytes_per_s=7.7e6), PLATFORM, SOURCE)
    assert rate.primary is not None
    assert rate.primary.text == (
        "1000.0 records/s x 8.6 kB = 8.6 MB/s, of which `flush` lets through 7.7 MB/s: that writes 1200 TB in 4.9 y"
    )


def test_counts_in_words() -> None:
    assert [count_words(n) for n in (812, 173_106, 80e6, 2.5e9)] == ["812", "173.1k", "80.0M", "2.5G"]


# --- the command -----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = flash_nest(["policy", "check", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_records_that_fit_by_the_real_stores_arithmetic_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "dram_only", "hotcold", "--platform", "rtx4090", "--records", "250M")
    assert code == 0, out
    code, out, _ = run(capsys, "dram_only", "--platform", "rtx4090", "--records", "270M")
    assert code == 2
    assert "270.0M records x 57.3 B = 14.4 GiB" in out
    assert "counts from --records 270M: as many of 4, 8, 16, 32 tokens each, and 1/32 of that of chunks" in out


def test_shares_and_time_say_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--platform", "rtx4090", "--records", "400M", "--within", "2d", "--shares", "8=90%,chunk=10%")
    code, out, _ = run(capsys, "nvme_only", *flags)
    assert code == 0
    assert "warning[T203]" in out
    assert "counts from --records 400M: shares 8=90%,chunk=10%; they come within 2.0 d" in out
    assert run(capsys, "nvme_only", *flags, "--strict")[0] == 1


def test_a_platform_alone_judges_latency_by_its_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.yaml"
    text = "tiers:\n  nvme: {capacity: 64GiB, cold_reads: blocking}\nrules: |\n  place otherwise in nvme\n"
    file.write_text(text + "  require lookup p99 <= 2ms\n")
    code, out, _ = run(capsys, file, "--platform", "dgx_spark")
    assert code == 2
    assert "lookup p99 is 11.4 ms by prediction" in out  # 128 reads x 86 us, one of them 430 us
    assert "`cold_reads: async` under `tiers.nvme` predicts" in out
    file.write_text(file.read_text().replace("blocking", "async"))
    assert run(capsys, file, "--platform", "dgx_spark")[0] == 0


def test_a_workload_is_counted_and_reckoned_on(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--platform", "local", "--workload", "repeat_50", "--requests")
    assert run(capsys, "dram_only", *flags, 16)[0] == 0
    code, out, _ = run(capsys, "dram_only", *flags, 16, "--format", "json")
    assert (code, json.loads(out)["errors"]) == (0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--records", "5"), "--records needs --platform"),
        (("--platform", "rtx4090", "--records", "5", "--workload", "smoke"), "both say which records come"),
        (("--platform", "rtx4090", "--within", "5d"), "--within goes with --records"),
        (("--platform", "rtx4090", "--records", "many"), "is not a number of records"),
        (("--platform", "rtx4090", "--records", "0"), "is not a number of records"),
        (("--platform", "rtx4090", "--records", "5", "--shares", "8=10"), "is not a share of a length"),
        (("--platform", "rtx4090", "--records", "5", "--shares", "0=10%"), "is not a share of a length"),
        (("--platform", "rtx4090", "--records", "5", "--shares", "8=0%"), "is nothing in all"),
        (("--platform", "rtx4090", "--lengths", "0"), "is not a list of 1 to 32"),
        (("--platform", "rtx409"), "did you mean `rtx4090`"),
        (("--platform", "rtx4090", "--workload", "repeat50"), "did you mean `repeat_50`"),
    ],
)
def test_options_that_do_not_go_together_are_one_clear_error(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "dram_only", *words)
    assert code == 2
    assert said in err
