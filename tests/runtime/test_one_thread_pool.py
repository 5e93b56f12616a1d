"""torch's operations and ours run on the same threads: a second pool would spin against the first."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import torch

from flashnest.runtime.model import TorchModel
from flashnest.runtime.weights import tiny_qwen3

PROBE = """
import os
from flashnest.runtime import lean_kernels
import torch
import numpy as np
torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
torch.ones(4_000_000).exp()
with_torch = len(os.listdir("/proc/self/task"))
import numba
lean_kernels.swiglu(np.ones((4000, 64), np.float32), np.ones((4000, 32), np.float32))
print(before, with_torch, len(os.listdir("/proc/self/task")), numba.threading_layer())
"""


def test_numba_adds_no_thread_to_torchs() -> None:
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    out = subprocess.run(
        [sys.executable, "-c", PROBE], check=True, capture_output=True, text=True, env=environment
    ).stdout.split()
    before, with_torch, with_numba = map(int, out[:3])
    assert with_torch > before
    assert (with_numba, out[3]) == (with_torch, "omp")


def test_a_model_gives_numba_as_many_threads_as_torch_has() -> None:
    """libgomp ends threads and makes them anew where one team is smaller than the next."""
    formerly = torch.get_num_threads(), numba.get_num_threads()
    try:
        torch.set_num_threads(1)
        TorchModel(tiny_qwen3(1), 1, "tiny").close()
        assert numba.get_num_threads() == 1
    finally:
        torch.set_num_threads(formerly[0])
        numba.set_num_threads(formerly[1])
