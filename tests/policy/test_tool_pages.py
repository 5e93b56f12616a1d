"""The pages of `policy test` and `policy explain`: their commands print what the pages show."""

from __future__ import annotations

import pytest
from pages import played, steps


@pytest.mark.parametrize("page", ["test.md", "explain.md"])
def test_commands_print_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for command, said in steps(page):
        assert played(command, said) == said, command
