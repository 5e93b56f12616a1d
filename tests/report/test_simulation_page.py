"""The HTML page needs nothing but itself, and shows names and texts as they are."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from simulated import simulated

from flashnest.errors import ConfigError
from flashnest.report.simulation_page import simulation_page, write_page

NAMES = ("a/dram_only.yaml", "b/<b>&.yaml")


@pytest.fixture(scope="module")
def page() -> str:
    warned = simulated(
        NAMES[1], warnings=["<script>alert(1)</script>"], requirements=[["require dram hits >= 90%", False]]
    )
    return simulation_page([simulated(NAMES[0], nvme=None), warned], heading="1 < 2", command="flash-nest simulate x")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.opened: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_data(self, data):
        if "script" not in self.opened[-1:]:
            self.text.append(data)


def _read(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    return tags


def test_page_loads_nothing_from_elsewhere(page):
    assert _read(page).links == []
    assert "cdn.plot.ly/plotly" not in re.sub(r"<script>.*?</script>", "", page, count=1, flags=re.DOTALL)


def test_page_escapes_what_files_and_policies_say(page):
    tags = _read(page)
    text = " ".join(tags.text)
    assert "<script>alert(1)</script>" in text
    assert tags.opened.count("b") == 0
    assert "1 < 2" in text


def test_page_has_the_table_and_every_plot(page):
    text = " ".join(_read(page).text)
    for heading in ("Questions answered, by tier", "DRAM over time (MiB)", "NVMe over time (MiB)", "Remarks", "broken"):
        assert heading in text
    assert page.count("plotly-graph-div") == 6
    assert "80.0 %" not in text
    assert "70.0 %" in text


def test_page_is_written_whole(tmp_path: Path, page):
    path = tmp_path / "deep" / "page.html"
    write_page([simulated()], path, heading="h", command="c")
    assert path.read_text(encoding="utf-8").endswith("</html>\n")


def test_place_that_cannot_be_written_is_told_with_the_option(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        write_page([simulated()], tmp_path / "file" / "page.html", heading="h", command="c")
    assert caught.value.what.startswith("cannot write ")
    assert caught.value.fix == "give another place: --html FILE.html"


def test_missing_plotly_is_told_with_the_command(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ConfigError) as caught:
        simulation_page([simulated()], heading="h", command="c")
    assert caught.value.fix == "pip install plotly"
