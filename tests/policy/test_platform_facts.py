"""Platform files as the policy commands read them: the same numbers as a run reads, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from flashnest.cli.policy.platforms import platform_facts, platform_names, tier_capacities
from flashnest.config.load import load_run
from flashnest.errors import ConfigError
from flashnest.policy.tiering_file import load_tiering_file
from flashnest.record import Tier

CONF = Path("flashnest/conf")
EMULATED = ("dgx_spark", "rtx3090", "rtx4090", "rtx5090", "strix_halo")

SMALL = """
load: {concurrency: 4}
table: {dram: 100MB, nvme: 1GB}
"""


@pytest.mark.parametrize("name", EMULATED)
def test_the_commands_read_the_numbers_that_a_run_reads(name: str) -> None:
    with initialize_config_module("flashnest.conf", version_base=None):
        run = load_run(compose("config", [f"+platform={name}", "+tiering=hotcold"]))
    facts = platform_facts(name)
    nvme, table, memory = run.platform.nvme, run.platform.table, run.platform.memory
    assert nvme is not None
    assert (facts.vram_bytes, facts.dram_bytes, facts.nvme_bytes) == (
        table.vram_bytes,
        table.dram_bytes,
        table.nvme_bytes,
    )
    assert (facts.nvme_read_mean_s, facts.nvme_read_p99_s) == (nvme.random_read_mean_s, nvme.random_read_p99_s)
    assert (facts.nvme_iops, facts.nvme_endurance_bytes) == (nvme.iops, nvme.endurance_bytes)
    assert facts.nvme_sequential_bytes_per_s == nvme.sequential_read_bytes_per_s
    assert facts.concurrency == run.platform.load.concurrency
    assert (facts.memory_dram_bytes, facts.memory_vram_bytes) == (memory.dram_bytes, memory.vram_bytes)
    assert facts.unified_memory == run.platform.unified_memory
    assert not facts.drive_assumed
    assert facts.nvme_endurance_bytes == 1200 * 10**12


def test_every_shipped_platform_can_be_read() -> None:
    assert {"local", *EMULATED} == set(platform_names())
    local = platform_facts("local")
    assert local.drive_assumed
    assert local.nvme_endurance_bytes is None
    assert local.dram_bytes == 256 << 20


def test_a_file_of_ones_own_builds_on_a_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "box.yaml"
    own.write_text("defaults:\n  - rtx4090\n  - _self_\nnvme: {endurance: 600TB}\ntable: {dram: 20GiB}\n")
    facts = platform_facts(str(own))
    assert facts.name == "box"
    assert facts.nvme_endurance_bytes == 600 * 10**12
    assert facts.dram_bytes == 20 << 30
    assert facts.nvme_bytes == platform_facts("rtx4090").nvme_bytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load: {concurrency: 4}\n", "table.dram is not given"),
        (SMALL.replace("4", "0"), "load.concurrency = 0 is not a number of at least 1"),
        (SMALL.replace("1GB", "1GBit"), "unknown unit 'GBit'"),
        (SMALL + "nvme: {random_read_mean: 86us, random_read_p99: 430us}\n", "nvme.iops is not given"),
        (
            SMALL + "nvme: {random_read_mean: 86us, random_read_p99: 430us, iops: 5, sequential_read: 5rec/s}\n",
            "not a rate in bytes",
        ),
        ("- a\n", "not a platform file"),
        ("a: [\n", "not YAML"),
        ("defaults: [box]\n", "defaults go round"),
    ],
)
def test_a_wrong_platform_file_is_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    own = tmp_path / "box.yaml"
    own.write_text(text)
    with pytest.raises(ConfigError, match=r"box\.yaml") as wrong:
        platform_facts(str(own))
    assert said in str(wrong.value)


def test_an_unknown_platform_is_named_with_the_one_meant() -> None:
    with pytest.raises(ConfigError, match="did you mean `rtx4090`"):
        platform_facts("rtx409")
    with pytest.raises(ConfigError, match="cannot read"):
        platform_facts("/nowhere/box.yaml")


def test_capacities_come_from_the_platform_or_as_written(tmp_path: Path) -> None:
    spark = platform_facts("dgx_spark")
    hotcold = load_tiering_file(CONF / "tiering" / "hotcold.yaml")
    assert tier_capacities(hotcold, spark) == {Tier.DRAM: 16 << 30, Tier.NVME: 64 << 30}
    nvme_only = load_tiering_file(CONF / "tiering" / "nvme_only.yaml")
    assert tier_capacities(nvme_only, spark) == {Tier.DRAM: 64 << 20, Tier.NVME: 64 << 30}
    plain = tmp_path / "a.tier"
    plain.write_text("place otherwise in dram")
    assert tier_capacities(load_tiering_file(plain), platform_facts("rtx4090")) == {
        Tier.VRAM: 1 << 30,
        Tier.DRAM: 14 << 30,
        Tier.NVME: 64 << 30,
    }


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        ("${platform.table.l3}", "has no table.l3"),
        ("${table.dram}", r"write a size, or ${platform.table.dram}"),
        ("5min", "is a duration where a size is needed"),
    ],
)
def test_a_capacity_that_cannot_be_read_names_its_key(tmp_path: Path, capacity: str, said: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"tiers:\n  dram: {{eviction: lru, capacity: '{capacity}'}}\nrules: place otherwise in dram\n")
    with pytest.raises(ConfigError, match=r"tiers\.dram\.capacity") as wrong:
        tier_capacities(load_tiering_file(file), platform_facts("local"))
    assert said in str(wrong.value)


def test_a_bare_capacity_is_bytes_and_a_missing_one_an_error(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("tiers: {dram: {capacity: 14}}\nrules: place otherwise in dram\n")
    assert tier_capacities(load_tiering_file(file), platform_facts("local")) == {Tier.DRAM: 14}
    file.write_text("tiers: {dram: {eviction: lru}}\nrules: place otherwise in dram\n")
    with pytest.raises(ConfigError, match=r"tiers\.dram\.capacity is not given"):
        tier_capacities(load_tiering_file(file), platform_facts("local"))
