"""Every option composes; every mistake is one error that names the place and suggests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

import flashnest
from flashnest.cli.arguments import parse_command
from flashnest.cli.compose import Composer
from flashnest.cli.run import run_from
from flashnest.config import RunConfig
from flashnest.config.load import keys_of, load_run, section_at
from flashnest.config.origins import Origins, line_of_key
from flashnest.errors import ConfigError

CONF = Path(flashnest.__file__).parent / "conf"
PLATFORMS = ("rtx3090", "rtx4090", "rtx5090", "dgx_spark", "strix_halo", "local")
TIERINGS = ("dram_only", "nvme_only", "hotcold", "vram_only", "vram_first", "long_context", "code_assistant")
WORKLOADS = ("repeat_00", "repeat_20", "repeat_50", "repeat_80", "smoke")
QWEN3 = ("qwen3_0_6b", "qwen3_1_7b", "qwen3_4b", "qwen3_8b", "qwen3_14b", "qwen3_32b")
MODELS = ("smollm2_135m", *QWEN3, "tiny_qwen3")


def compose(*arguments: str) -> RunConfig:
    """Compose and check a run the way the command line does."""
    composer = Composer(parse_command(arguments))
    return run_from(composer.compose(composer.complete()))


def refused(*arguments: str) -> ConfigError:
    """Return the error that these arguments raise."""
    with pytest.raises(ConfigError) as caught:
        compose(*arguments)
    return caught.value


def plain(*arguments: str) -> dict[str, Any]:
    """Return a composed config as plain containers, to be damaged by a test."""
    composer = Composer(parse_command(arguments))
    cfg = composer.compose(composer.complete())
    values = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(values, dict)
    del values["hydra"]
    return {str(key): value for key, value in values.items()}


def test_the_groups_hold_exactly_the_promised_options() -> None:
    for group, options in {"platform": PLATFORMS, "workload": WORKLOADS, "model": MODELS}.items():
        assert {path.stem for path in (CONF / group).glob("*.yaml")} == set(options)
    assert {path.stem for path in (CONF / "tiering").glob("*.yaml")} >= set(TIERINGS)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("tiering", TIERINGS)
def test_every_platform_composes_with_every_tiering(platform: str, tiering: str) -> None:
    run = compose(f"+platform={platform}", f"+tiering={tiering}")
    assert (run.platform.name, run.tiering.name) == (platform, tiering)
    assert run.workload.name == "repeat_50"
    assert run.model.name == ("smollm2_135m" if platform == "local" else "qwen3_8b")
    assert run.workload.concurrency == run.platform.load.concurrency
    if run.tiering.tiers.dram is not None:
        assert run.tiering.tiers.dram.capacity_bytes <= run.platform.table.dram_bytes


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_composes(workload: str) -> None:
    run = compose(f"workload={workload}")
    assert run.workload.name == workload
    if workload != "smoke":
        assert run.workload.repeat_share == int(workload[-2:]) / 100
        assert run.workload.requests == run.platform.load.requests


@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes_on_this_machine(model: str) -> None:
    assert compose(f"model={model}").model.name == model


@pytest.mark.parametrize(
    ("model", "parameters", "kv_bytes", "attention_width"),
    [
        ("qwen3_0_6b", 0.6e9, 114_688, 2048),  # wider than its hidden state of 1024
        ("qwen3_1_7b", 1.7e9, 114_688, 2048),
        ("qwen3_4b", 4.0e9, 147_456, 4096),
        ("qwen3_8b", 8.2e9, 147_456, 4096),
        ("qwen3_14b", 14.8e9, 163_840, 5120),
        ("qwen3_32b", 32.8e9, 262_144, 8192),
    ],
)
def test_qwen3_shapes_give_the_published_sizes(
    model: str, parameters: float, kv_bytes: int, attention_width: int
) -> None:
    shape = compose("+platform=dgx_spark", f"model={model}").model.shape
    assert shape is not None
    assert shape.parameters == pytest.approx(parameters, rel=0.02)
    assert shape.weight_bytes == pytest.approx(shape.parameters, rel=0.02)
    assert shape.kv_bytes_per_token == kv_bytes
    assert shape.attention_ops_per_pair == 4 * shape.layers * attention_width


def test_a_shape_without_heads_is_as_wide_as_its_hidden_state() -> None:
    shape = compose("+platform=dgx_spark", "model=qwen3_8b", "model.shape.heads=null").model.shape
    assert shape is not None
    assert shape.attention_ops_per_pair == 4 * 36 * 4096


def test_left_out_groups_are_this_machine_and_dram_only() -> None:
    run = compose()
    assert (run.platform.name, run.platform.emulated, run.tiering.name) == ("local", False, "dram_only")
    assert run.platform.memory.dram_bytes > 2**28  # detected


def test_a_forgotten_plus_is_put_right() -> None:
    run = compose("platform=dgx_spark", "tiering=hotcold")
    assert (run.platform.name, run.tiering.name) == ("dgx_spark", "hotcold")


def test_the_users_model_wins_over_the_platforms() -> None:
    assert compose("+platform=rtx4090", "model=smollm2_135m").model.name == "smollm2_135m"
    assert compose("model=smollm2_135m", "+platform=rtx4090").model.name == "smollm2_135m"


def test_a_model_without_a_shape_is_refused_on_an_emulated_platform() -> None:
    error = refused("+platform=rtx4090", "model=tiny_qwen3")
    assert "tiny_qwen3" in error.what
    assert "qwen3_8b" in error.fix


def test_quantities_carry_their_unit_in_the_name() -> None:
    run = compose("+platform=rtx4090", "decode.kv_pool=2GiB")
    assert run.platform.memory.vram_bytes == 24 * 2**30
    assert run.platform.memory.vram_bytes_per_s == 1008e9
    assert run.platform.nvme is not None
    assert run.platform.nvme.random_read_mean_s == pytest.approx(86e-6)
    assert run.decode.kv_pool_bytes == 2 * 2**30
    assert run.model.shape is not None
    assert run.model.shape.kv_bytes_per_token == 147456  # facts R1: 147 KB


def test_the_limits_of_a_large_cold_tier() -> None:
    """Facts F20: `--ngram-io-depth 16 --ngram-prefetch-size 128MiB --max-concurrency 32`."""
    limits = ("depth=16", "prefetch=128MiB", "concurrency=32")
    run = compose("+platform=dgx_spark", "+tiering=hotcold", *(f"tiering.tiers.nvme.{limit}" for limit in limits))
    nvme = run.tiering.tiers.nvme
    assert nvme is not None
    assert (nvme.depth, nvme.prefetch_keys) == (16, 32768)
    assert run.workload.concurrency == 128
    assert run.max_requests == 32


def test_the_sweep_may_be_switched_off() -> None:
    assert compose("decode.sweep_budget=0s").decode.sweep_budget_s == 0.0
    assert compose().decode.sweep_budget_s == pytest.approx(500e-6)


def test_unified_memory_is_the_gpus_memory() -> None:
    spark = compose("+platform=dgx_spark").platform
    assert spark.gpu_memory_bytes == spark.memory.dram_bytes == 128 * 2**30
    assert spark.gpu_bytes_per_s == 273e9


def test_the_run_is_frozen_all_the_way_down() -> None:
    run = compose()
    for section, key in ((run, "seed"), (run.decode.drafts, "enabled"), (run.platform.memory, "dram_bytes")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, key, 1)
    assert isinstance(run.decode.drafts.lengths, tuple)


@pytest.mark.parametrize(
    ("said", "governor", "fixed"),
    [("on", "on", None), ("true", "on", None), ("off", "off", 16), ("false", "off", 16), ("4", 4, 4), ("'4'", 4, 4)],
)
def test_the_governor_is_on_off_or_a_length(said: str, governor: object, fixed: int | None) -> None:
    drafts = compose(f"decode.drafts.governor={said}").decode.drafts
    assert (drafts.governor, drafts.fixed_tokens) == (governor, fixed)


def test_a_run_survives_json() -> None:
    run = compose("+platform=rtx4090", "+tiering=hotcold")
    again = run.model_dump(mode="json")
    assert again["tiering"]["tiers"]["dram"]["capacity_bytes"] == run.platform.table.dram_bytes


@pytest.mark.parametrize("path", sorted((CONF / "platform").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_platform_number_carries_its_source(path: Path) -> None:
    source = re.compile(r"#.*(F\d+|R\d|sheet|whitepaper|ISA|PCIe|assumed|derived|chosen)")
    numbers = [line for line in path.read_text().splitlines() if re.match(r"\s+\w+: *[\d.]", line)]
    assert len(numbers) >= 4
    assert [line for line in numbers if not source.search(line)] == []


def sections(values: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the key path of every part of the config that has a class of its own."""
    yield at
    for key, value in values.items():
        if isinstance(value, dict) and section_at((*at, key)):
            yield from sections(value, (*at, key))


def test_every_misspelt_key_is_named_and_its_spelling_suggested() -> None:
    base = plain("+platform=rtx4090", "+tiering=hotcold")
    tried = 0
    for at in sections(base):
        section = section_at(at)
        assert section is not None
        for key in keys_of(section):
            damaged = OmegaConf.to_container(OmegaConf.create(base), resolve=True)
            node: Any = damaged
            for part in at:
                node = node[part]
            if key not in node or len(key) < 4:
                continue
            wrong = key[:-2] + key[-1] + key[-2] if key[-1] != key[-2] else key + "x"
            node[wrong] = node.pop(key)
            with pytest.raises(ConfigError) as caught:
                load_run(OmegaConf.create(damaged))
            assert caught.value.what.startswith(".".join((*at, wrong)))
            assert f"did you mean {key!r}?" in caught.value.fix
            tried += 1
    assert tried > 50


def test_a_misspelt_key_on_the_command_line_is_suggested() -> None:
    error = refused("workload.repeet_share=0.5")
    assert error.what.startswith("workload.repeet_share: unknown key")
    assert "repeat_share" in error.fix
    error = refused("+workload.repeet_share=0.5")
    assert "override '+workload.repeet_share=0.5'" in error.what
    assert "repeat_share" in error.fix
    assert "'platform'" in refused("+platfrom=local").fix


@pytest.mark.parametrize(
    ("overrides", "at", "said"),
    [
        ("platform.memory.dram=12Gb", "platform.memory.dram:", "12GB or 12GiB"),
        ("platform.memory.dram=5min", "platform.memory.dram:", "a duration where a size"),
        ("+platform=rtx4090 platform.nvme.random_read_mean=86", "platform.nvme.random_read_mean:", "duration"),
        ("+platform=rtx4090 platform.nvme.random_read_mean=8ms5", "platform.nvme.random_read_mean:", "8ms5"),
        ("+platform=rtx4090 platform.memory.vram_bandwidth=5rec/s", "platform.memory.vram_bandwidth:", "in bytes"),
        ("+platform=rtx4090 platform.compute=null", "platform:", "compute not given"),
        ("workload.repeat_share=1.5", "workload.repeat_share:", "less than or equal to 1"),
        ("workload.requests=many", "workload.requests:", "integer"),
        ("workload.requests=0", "workload.requests:", "greater than 0"),
        ("model.dtype=flaot32", "model.dtype:", "did you mean 'float32'?"),
        ("seed=-1", "seed:", "greater than or equal to 0"),
        ("decode.drafts.lengths=[8,4]", "decode.drafts:", "not ascending"),
        ("decode.drafts.governor=maybe", "decode.drafts.governor", "on, off, or a number"),
        ("decode.drafts.governor=0", "decode.drafts.governor", "on, off, or a number"),
        ("decode.drafts.lengths=[8,64]", "decode.drafts.lengths.1:", "less than or equal to 32"),
        ("decode.max_step_tokens=32 workload.concurrency=64", "decode.max_step_tokens", "64 requests"),
        ("workload.requests=${platform.nope}", "workload.requests:", "platform.nope"),
        ("workload.requests=???", "workload.requests:", "no value given"),
        ("tiering.tiers.dram=null", "tiering.tiers:", "no tier"),
        ("+tiering=hotcold tiering.tiers.nvme.engine=rocks", "tiering.tiers.nvme.engine:", "lmdb"),
        ("+tiering=hotcold tiering.tiers.nvme.deadline=50", "tiering.tiers.nvme.deadline:", "duration"),
        ("+tiering=hotcold tiering.tiers.nvme.io=uring", "tiering.tiers.nvme.io:", "io_uring"),
        ("+tiering=hotcold tiering.tiers.nvme.prefetch=0B", "tiering.tiers.nvme.prefetch:", "greater than 0"),
        ("+tiering=hotcold tiering.tiers.nvme.concurrency=0", "tiering.tiers.nvme.concurrency:", "greater than 0"),
        ("tiering.tiers.dram.eviction=s3fif", "tiering.tiers.dram.eviction:", "did you mean 's3fifo'?"),
        ("decode.sweep_budget=500", "decode.sweep_budget:", "duration"),
        ("table.chain_tokens=32", "table.chain_tokens:", "less than or equal to 31"),
        ("+tiering.params.long=true", "tiering.params.long:", "not a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(overrides: str, at: str, said: str) -> None:
    error = refused(*overrides.split())
    assert error.what.startswith(at)
    assert said in str(error)


def test_a_key_that_the_options_file_leaves_out_needs_a_plus(tmp_path: Path) -> None:
    (tmp_path / "tiering").mkdir()
    rules = "rules: |\n  place otherwise in dram\n"
    (tmp_path / "tiering" / "mine.yaml").write_text(f"tiers: {{dram: {{capacity: 1MiB}}}}\n{rules}")
    mine = (f"--config-dir={tmp_path}", "+tiering=mine")
    assert "write +tiering.tiers.dram.eviction=VALUE" in str(refused(*mine, "tiering.tiers.dram.eviction=lru"))
    tier = compose(*mine, "+tiering.tiers.dram.eviction=lru").tiering.tiers.dram
    assert tier is not None
    assert tier.eviction == "lru"


def test_a_wrong_value_is_named_with_its_override() -> None:
    assert "(override 'workload.requests=many')" in refused("workload.requests=many").what


def test_an_unknown_option_lists_the_options_in_one_line() -> None:
    error = refused("+platform=dgx_sprak")
    assert "did you mean 'dgx_spark'?" in error.what
    assert all(option in error.what for option in PLATFORMS)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    "override",
    [
        "+x._target_=os.system",
        "+workload.text={_target_:os.system}",
        "+tiering.params.x._target_=os.system",
        "+hydra.callbacks.x._target_=os.system",
        r"+hydra.job_logging.formatters.x={\(\):os.system}",
        "+hydra.job_logging.handlers.x.class=subprocess.Popen",
    ],
)
def test_a_config_never_names_code(override: str) -> None:
    assert "refused" in refused(override).what


def test_a_wrong_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    text = (CONF / "workload/smoke.yaml").read_text().replace("fragments: 3", "fragmants: 3", 1)
    file = tmp_path / "workload/mine.yaml"
    file.write_text(text)
    error = refused("--config-dir", str(tmp_path), "workload=mine")
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "fragmants" in row)
    assert f"{file}:{line}" in error.what
    assert "did you mean 'fragments'?" in error.fix


def test_broken_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "workload").mkdir()
    file = tmp_path / "workload/mine.yaml"
    file.write_text("requests: [1,\n")
    assert str(file) in refused("--config-dir", str(tmp_path), "workload=mine").what


def test_line_of_key_finds_nested_keys() -> None:
    text = "a:\n  b: 1\n  c:\n    d: 2\n"
    assert [line_of_key(text, keys) for keys in (["a"], ["a", "b"], ["a", "c", "d"], ["a", "x"])] == [1, 2, 4, 0]


def test_origins_without_sources_say_nothing() -> None:
    assert Origins().describe(["workload", "requests"]) == ""


OPS_PLATFORM = """
emulated: false
unified_memory: false
memory: {vram: 80GiB, dram: 512GiB, vram_bandwidth: null, dram_bandwidth: null, host_link: null}
compute: null
nvme: null
power: null
table: {dram: 100MiB, nvme: 1GiB}
load: {concurrency: 3, requests: 5}
"""
OPS_TIERING = """
tiers: {dram: {capacity: "${platform.table.dram}"}}
params: {long: 24}
rules: place otherwise in dram
"""


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    """Return an ops repo's folder with its own platform, tiering and workload, and a primary config."""
    workload = (CONF / "workload/repeat_20.yaml").read_text()
    primary = "defaults:\n  - config\n  - platform: rack7\n  - tiering: ours\n  - _self_\nseed: 9\n"
    files = {"platform/rack7": OPS_PLATFORM, "tiering/ours": OPS_TIERING, "workload/night": workload, "prod": primary}
    for name, text in files.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize("how", ["--config-dir={}", "hydra.searchpath=[file://{}]"])
def test_an_ops_repo_brings_its_own_files(ops: Path, how: str) -> None:
    run = compose(how.format(ops), "+platform=rack7", "+tiering=ours", "workload=night", "tiering.params.long=48")
    assert (run.platform.name, run.tiering.name, run.workload.name) == ("rack7", "ours", "night")
    assert run.tiering.tiers.dram is not None
    assert run.tiering.tiers.dram.capacity_bytes == 100 * 2**20
    assert (run.workload.concurrency, run.tiering.params["long"]) == (3, 48)
    assert run.tiering.tiers.names == ("dram",)
    assert run.tiering.source == str(ops / "tiering/ours.yaml")


def test_an_ops_repo_brings_its_own_primary_config(ops: Path) -> None:
    run = compose("--config-dir", str(ops), "--config-name", "prod")
    assert (run.platform.name, run.tiering.name, run.seed) == ("rack7", "ours", 9)
    run = compose("--config-dir", str(ops), "--config-name", "prod", "+platform=local", "tiering=dram_only")
    assert (run.platform.name, run.tiering.name) == ("local", "dram_only")


def test_an_ops_repo_may_replace_the_config_path(ops: Path) -> None:
    site = "hydra: {searchpath: ['pkg://flashnest.conf']}\ndefaults: [config, _self_]\nseed: 8\n"
    (ops / "site.yaml").write_text(site)
    run = compose("--config-path", str(ops), "--config-name", "site", "platform=rack7")
    assert (run.platform.name, run.tiering.name, run.seed) == ("rack7", "dram_only", 8)


def test_an_ops_repos_options_are_listed_in_errors(ops: Path) -> None:
    assert "rack7" in refused("--config-dir", str(ops), "+platform=rack8").what


def test_places_that_do_not_exist_are_refused() -> None:
    assert "no such folder" in refused("--config-dir", "/nowhere").what
    assert "/nowhere" in refused("hydra.searchpath=[file:///nowhere]").what
