"""The tools for platforms and changes on every shipped policy: each fits its machines, and is no change of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashnest.cli.commands import flash_nest

SHIPPED = sorted(path.stem for path in Path("flashnest/conf/tiering").glob("*.yaml"))


@pytest.mark.parametrize("platform", ["rtx4090", "dgx_spark"])
def test_every_shipped_policy_fits_a_machine(platform: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert flash_nest(["policy", "check", *SHIPPED, "--platform", platform, "--records", "4M", "--within", "7d"]) == 0
    out = capsys.readouterr().out
    assert not any(code in out for code in ("T201", "T202", "T203"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_policy_is_no_change_of_itself_and_can_be_planned(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash_nest(["policy", "diff", name, name]) == 0
    assert flash_nest(["policy", "diff", name, "nvme_only" if name != "nvme_only" else "dram_only"]) == 1
    assert flash_nest(["policy", "plan", name, "--trace", "smoke", "--requests", "4"]) == 0
    out = capsys.readouterr().out
    assert "placed elsewhere" not in out
    assert "records move or go" in out
