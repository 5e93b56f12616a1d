"""The config of a run, typed, checked and frozen. Hydra's only door is `flashnest.config.load.load_run`.

YAML group = field of RunConfig = class stem. Config stops at `app`: below it, constructors take plain typed values.
Nothing here instantiates what a config names, and only `load` knows Hydra's config type.
"""

from __future__ import annotations

from flashnest.config.model import ModelConfig, ShapeConfig
from flashnest.config.platform import (
    ComputeConfig,
    LoadConfig,
    MemoryConfig,
    NvmeConfig,
    PlatformConfig,
    PowerConfig,
    TableBudgetConfig,
)
from flashnest.config.run import DecodeConfig, DraftsConfig, ReportConfig, RunConfig, TableConfig
from flashnest.config.section import Section
from flashnest.config.tiering import DramTierConfig, NvmeTierConfig, TieringConfig, TiersConfig, VramTierConfig
from flashnest.config.workload import WorkloadConfig

__all__ = [
    "ComputeConfig",
    "DecodeConfig",
    "DraftsConfig",
    "DramTierConfig",
    "LoadConfig",
    "MemoryConfig",
    "ModelConfig",
    "NvmeConfig",
    "NvmeTierConfig",
    "PlatformConfig",
    "PowerConfig",
    "ReportConfig",
    "RunConfig",
    "Section",
    "ShapeConfig",
    "TableBudgetConfig",
    "TableConfig",
    "TieringConfig",
    "TiersConfig",
    "VramTierConfig",
    "WorkloadConfig",
]
