"""What is asked of the model. The prompts themselves are made by `flashnest.workload`."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from flashnest.config.section import Name, Section, Share


class WorkloadConfig(Section):
    """What is asked of the model: synthetic prompts from fragments of real text.

    `text` None = docstrings of Python's standard library. `echo_share` is used by emulated compute only.
    """

    name: Name
    repeat_share: Share
    requests: PositiveInt
    concurrency: PositiveInt
    fragments: PositiveInt
    fragment_words: PositiveInt
    hot_fragments: PositiveInt
    output_tokens: PositiveInt
    text: str | None
    echo_share: Share
    namespaces: PositiveInt
    arrival: Literal["closed"]
