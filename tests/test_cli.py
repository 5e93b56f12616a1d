"""The two command lines: what they run, how they fail, and how fast they start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import flashnest
from flashnest import cli
from flashnest.cli.run import main
from flashnest.config import RunConfig
from flashnest.errors import StoreError

Output = pytest.CaptureFixture[str]
ROOT = Path(flashnest.__file__).parents[1]


class FakeApp(ModuleType):
    """Stands for `flashnest.app`: remembers the runs, and ends each as told."""

    def __init__(self) -> None:
        super().__init__("flashnest.app")
        self.runs: list[tuple[RunConfig, Path]] = []
        self.end: Callable[[RunConfig], int] = lambda _: 0

    def run(self, run: RunConfig, output_dir: Path) -> int:
        """Take the place of `app.run`."""
        self.runs.append((run, output_dir))
        return self.end(run)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApp:
    """Return a stand-in for the wiring, in an empty working folder."""
    fake = FakeApp()
    monkeypatch.setitem(sys.modules, "flashnest.app", fake)
    monkeypatch.setattr(flashnest, "app", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run our interpreter from another folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_a_run_reaches_the_app_with_its_folder(app: FakeApp, tmp_path: Path) -> None:
    assert main(["+platform=dgx_spark", "+tiering=hotcold", "seed=7"]) == 0
    [(run, folder)] = app.runs
    assert (run.platform.name, run.tiering.name, run.seed) == ("dgx_spark", "hotcold", 7)
    assert folder.is_relative_to(tmp_path / "outputs")
    assert (folder / ".hydra/overrides.yaml").is_file()


def test_the_exit_code_is_the_apps(app: FakeApp) -> None:
    app.end = lambda _: 130
    assert main([]) == 130


def test_a_sweep_runs_every_combination_and_ends_with_the_worst_code(app: FakeApp, capsys: Output) -> None:
    app.end = lambda run: 2 if run.tiering.name == "dram_only" else 0
    assert main(["--multirun", "+tiering=dram_only,hotcold", "seed=1,2"]) == 2
    assert [(run.tiering.name, run.seed) for run, _ in app.runs] == [
        ("dram_only", 1),
        ("dram_only", 2),
        ("hotcold", 1),
        ("hotcold", 2),
    ]
    assert len({folder for _, folder in app.runs}) == 4
    assert "run 2: +tiering=hotcold seed=1" in capsys.readouterr().out


def test_a_sweep_goes_on_after_a_run_that_fails(app: FakeApp, capsys: Output) -> None:
    assert main(["-m", "workload.requests=many,4"]) == 2
    assert [run.workload.requests for run, _ in app.runs] == [4]
    assert "workload.requests: 'many' is refused" in capsys.readouterr().err


def test_hydra_mode_multirun_sweeps_too(app: FakeApp) -> None:
    assert main(["hydra.mode=MULTIRUN", "seed=1,2"]) == 0
    assert [run.seed for run, _ in app.runs] == [1, 2]


def test_ctrl_c_ends_the_whole_sweep(app: FakeApp) -> None:
    app.end = lambda _: 130
    assert main(["-m", "seed=1,2,3"]) == 130
    assert len(app.runs) == 1


USER_ERRORS = [
    "+platform=dgx_sprak",
    "platform=dgx_sprak",
    "+platfrom=local",
    "+tiering=nope",
    "-m +tiering=dram_only,nope",
    "model=nope",
    "nope=1",
    "workload.nope=1",
    "+workload.nope=1",
    "workload.requests=many",
    "workload.requests",
    "a=[",
    "seed=1,2",
    "+seed=1",
    "++model=qwen3_8b",
    "~tiering.rules",
    "~workload",
    "~nope",
    "platform.memory.dram=12Gb",
    "+x._target_=os.system",
    "hydra.searchpath=[file:///nowhere]",
    "hydra.searchpath=nowhere",
    "hydra.run.dir=${nope}",
    "hydra.nope=1",
    "hydra/launcher=nope",
    "--config-dir /nowhere",
    "--config-path /nowhere",
    "--config-name nowhere",
    "--config-name",
    "--nope",
    "--cfg nope",
    "--cfg job --multirun",
    "--cfg job -p nope",
    "--resolve",
    "--experimental-rerun=x.pickle",
    "-sc query=nope",
]


@pytest.mark.parametrize("line", USER_ERRORS)
def test_a_user_error_is_short_and_ends_with_2(app: FakeApp, capsys: Output, tmp_path: Path, line: str) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert app.runs == []
    assert 1 <= len(said.err.strip().splitlines()) <= 3
    assert "Traceback" not in said.err + said.out
    assert "HYDRA_FULL_ERROR" not in said.err
    if not line.startswith("-m"):
        assert list(tmp_path.iterdir()) == []


def test_an_unknown_platform_is_answered_in_one_line(app: FakeApp, capsys: Output) -> None:
    assert main(["+platform=dgx_sprak"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "did you mean 'dgx_spark'?" in line
    assert "rtx3090" in line


@pytest.mark.parametrize("how", ["--debug", "debug=true"])
def test_debug_shows_the_traceback_of_a_failed_run(app: FakeApp, capsys: Output, how: str) -> None:
    def fail(run: RunConfig) -> int:
        raise StoreError("the disk is full", fix="free some space")

    app.end = fail
    assert main([]) == 2
    assert capsys.readouterr().err.splitlines() == ["error: the disk is full", "free some space"]
    assert main([how]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert app.runs[1][0].debug is True


def test_debug_shows_the_traceback_of_a_config_error(app: FakeApp, capsys: Output) -> None:
    assert main(["seed=-1", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_says_so_in_two_lines(app: FakeApp, capsys: Output) -> None:
    def fail(run: RunConfig) -> int:
        raise RuntimeError("impossible")

    app.end = fail
    assert main([]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "internal error: RuntimeError: impossible"
    assert "--debug" in second
    assert main(["--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_process_is_left_as_it_was(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.argv)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    main(["seed=3"])
    assert sys.argv == before
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_cfg_job_shows_the_groups_that_were_filled_in(app: FakeApp, capsys: Output, tmp_path: Path) -> None:
    assert main(["--cfg", "job"]) == 0
    text = capsys.readouterr().out
    assert "platform:\n  emulated: false" in text
    assert "place otherwise in dram" in text
    assert app.runs == []
    assert list(tmp_path.iterdir()) == []


def test_cfg_job_resolves(app: FakeApp, capsys: Output) -> None:
    assert main(["--cfg", "job", "--resolve", "-p", "tiering.tiers", "+platform=rtx4090"]) == 0
    assert "capacity: 14GiB" in capsys.readouterr().out


def test_help_shows_the_command_the_groups_and_the_exit_codes(app: FakeApp, capsys: Output) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "python -m flashnest +platform=dgx_spark +tiering=hotcold" in text
    assert "platform: dgx_spark, local, rtx3090, rtx4090, rtx5090, strix_halo" in text
    assert "Exit codes" in text
    assert "Powered by Hydra" not in text


def test_every_override_that_help_names_works(app: FakeApp, capsys: Output) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    block = text[text.index("Common overrides") : text.index("Flags")]
    named = [word for word in block.split() if "=" in word and not word.startswith("tiering.params")]
    assert len(named) >= 8
    assert main(named) == 0


def test_info_and_completion_work(app: FakeApp, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--info", "searchpath"]) == 0
    assert "pkg://flashnest.conf" in capsys.readouterr().out
    monkeypatch.setenv("COMP_LINE", "flashnest +tiering=hot")
    assert main(["-sc", "query=bash"]) == 0
    assert "+tiering=hotcold" in capsys.readouterr().out


def test_version(app: FakeApp, capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"flashnest {flashnest.__version__}\n"


def test_the_module_runs_from_another_folder(tmp_path: Path) -> None:
    done = python("-m", "flashnest", "+platform=dgx_sprak", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: platform 'dgx_sprak' not found")
    assert len(done.stderr.splitlines()) == 1


def test_composing_loads_no_torch_and_no_numba(tmp_path: Path) -> None:
    code = (
        "import sys; from flashnest.cli.run import main; main(['--cfg', 'job']); print(*sys.modules, file=sys.stderr)"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0
    assert {"torch", "numba", "transformers"}.isdisjoint(done.stderr.split())
    assert "hydra" in done.stderr.split()


def test_flash_nest_run_maps_its_flags(app: FakeApp, tmp_path: Path) -> None:
    report = tmp_path / "it's a report.json"
    flags = ["--platform", "dgx_spark", "--tiering", "hotcold", "--workload", "smoke", "--model", "smollm2_135m"]
    assert cli.main(["run", *flags, "--report", str(report), "seed=4"]) == 0
    [(run, _)] = app.runs
    assert (run.platform.name, run.tiering.name, run.workload.name) == ("dgx_spark", "hotcold", "smoke")
    assert (run.model.name, run.seed, run.report.path) == ("smollm2_135m", 4, str(report))


def test_flash_nest_run_takes_hydras_flags(app: FakeApp, capsys: Output) -> None:
    assert cli.main(["run", "--tiering", "hotcold", "--cfg", "job", "-p", "workload"]) == 0
    assert "repeat_share: 0.5" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--debug", "run", "seed=-1"], ["run", "seed=-1", "--debug"]])
def test_flash_nest_takes_debug_anywhere(app: FakeApp, capsys: Output, arguments: list[str]) -> None:
    assert cli.main(arguments) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["nope", "--nope", "run --platform", "run --platform nope", "policy nope"])
def test_flash_nest_user_errors_end_with_2(app: FakeApp, capsys: Output, line: str) -> None:
    assert cli.main(line.split()) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_flash_nest_version(capsys: Output) -> None:
    assert cli.main(["--version"]) == 0
    assert flashnest.__version__ in capsys.readouterr().out


def test_flash_nest_help_starts_fast_and_light(tmp_path: Path) -> None:
    code = (
        "import sys, time; from flashnest.cli import main; main(['--help'])\n"
        "print(*sys.modules, file=sys.stderr); print(time.process_time())"
    )
    runs = [python("-c", code, cwd=tmp_path) for _ in range(3)]
    assert all("policy" in done.stdout and "run" in done.stdout for done in runs)
    assert {"torch", "numba", "transformers", "hydra", "pydantic"}.isdisjoint(runs[0].stderr.split())
    assert min(float(done.stdout.splitlines()[-1]) for done in runs) < 0.6  # CPU seconds: other load does not count
