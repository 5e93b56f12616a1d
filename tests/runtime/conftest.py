"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest
import torch


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread for torch and numba: on a busy 2-core machine a step of a tiny model takes 4 ms instead of 60."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])
