"""flashnest as a library: the page runs, the names load lazily, and all of it works where torch is not installed."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest

import flashnest

ROOT = Path(flashnest.__file__).parents[1]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
SIMULATE = "## Simulate\n"
"""From here on the page needs numba."""

NEEDED = ("lark", "numpy", "numpy.libs", "yaml", "_yaml", "xxhash")
"""What the policy language needs, as folders of site-packages; nothing of it depends on more."""

WALK = """\
import importlib, pkgutil
import flashnest.policy
for module in pkgutil.iter_modules(flashnest.policy.__path__):
    if module.name != "pytest_plugin":
        importlib.import_module(f"flashnest.policy.{module.name}")
for heavy in ("torch", "numba", "pytest", "rich", "typer"):
    try:
        importlib.import_module(heavy)
    except ImportError:
        continue
    raise SystemExit(f"{heavy} can be imported here: the test shows nothing")
"""


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return each python block with the text that the page says it prints, "" for nothing."""
    return re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL)


def run_page(python: Path, text: str, folder: Path) -> None:
    """Run the blocks of a page in another Python and compare what they print."""
    code, said = ("".join(parts) for parts in zip(*blocks_of(text), strict=True))

    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout == said


def bare_python(folder: Path, packages: tuple[str, ...]) -> Path:
    """Make a virtual environment that has some packages of this one, linked, and flashnest's sources."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    links = folder / "links"
    links.mkdir()
    for name in packages:
        spec = find_spec(name) if "." not in name else None
        origin = Path(spec.origin).parent if spec and spec.origin else Path(find_spec("numpy").origin).parents[1] / name
        (links / name).symlink_to(origin)
    (links / "flashnest").symlink_to(ROOT / "flashnest")
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "links.pth").write_text(f"{links}\n")
    return folder / "venv" / "bin" / "python"


def test_the_page_runs_and_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, said in blocks_of(PAGE.split(SIMULATE)[0]):
        out = StringIO()
        with redirect_stdout(out):
            exec(code, names)
        assert out.getvalue() == said


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"), NEEDED)


def test_the_page_runs_where_only_four_packages_are_installed(python_without_torch, tmp_path):
    assert SIMULATE in PAGE

    run_page(python_without_torch, PAGE.split(SIMULATE)[0], tmp_path)


def test_the_page_simulates_where_numba_is_installed_and_torch_is_not(tmp_path):
    run_page(bare_python(tmp_path, (*NEEDED, "numba", "llvmlite")), PAGE, tmp_path)


def test_every_module_of_the_policy_language_loads_there(python_without_torch, tmp_path):
    done = subprocess.run([python_without_torch, "-c", WALK], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_importing_flashnest_loads_nothing_else():
    code = "import sys, flashnest; print(sorted({'numpy', 'lark', 'yaml', 'numba', 'torch'} & sys.modules.keys()))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_every_public_name_is_there_and_listed():
    assert set(flashnest.__all__) <= set(dir(flashnest))
    assert all(getattr(flashnest, name) is not None for name in flashnest.__all__)
    assert flashnest.simulate.__name__ == "flashnest.simulate"
    with pytest.raises(AttributeError, match="no attribute 'place'"):
        flashnest.place  # noqa: B018
    for name in set(flashnest.__all__) - {"__version__"}:
        assert f"`{name}" in PAGE or f"`flashnest.{name}`" in PAGE, name


def test_the_package_is_typed():
    stub = (ROOT / "flashnest" / "__init__.pyi").read_text()

    assert (ROOT / "flashnest" / "py.typed").exists()
    assert set(re.findall(r" as (\w+)", stub)) | {"__version__"} == set(flashnest.__all__)
