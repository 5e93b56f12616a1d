"""The VRAM table's operations need nothing of the host: shapes are fixed, no value is asked for, no device is crossed.

They run here on torch's meta device, whose tensors have shapes and no values: whatever depends on a value fails. A
dispatch mode writes down every operator, for what meta tensors would let pass and a GPU would not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashnest.record import row_words
from flashnest.storage import vram_insert, vram_ops
from flashnest.storage.vram_planes import VramPlanes, allocate_planes

WORDS = row_words()
META = torch.device("meta")

WAITS = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::bincount",
    "aten::repeat_interleave",
    "aten::lift_fresh",
    "aten::_to_copy.device",
}
INDEXED = {"aten::index", "aten::index_put_", "aten::index_put"}


class Operators(TorchDispatchMode):
    """Fails at the first operator that waits for the device or brings host data to it; counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        if name in WAITS:
            raise AssertionError(f"{name} waits for the device")
        if name in INDEXED and any(i is not None and i.dtype == torch.bool for i in args[1]):
            raise AssertionError(f"{name} with a mask has as many results as the mask is true")
        result = func(*args, **(kwargs or {}))
        for tensor in (*args, result):
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 0 and tensor.device.type != "meta":
                raise AssertionError(f"{name} touches a tensor on the {tensor.device.type}")
        self.count += 1
        return result


@pytest.fixture
def planes() -> VramPlanes:
    return allocate_planes(8, WORDS, META)


def keys_like(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device=META)


def rows_like(count: int) -> torch.Tensor:
    return torch.empty((count, WORDS), dtype=torch.int32, device=META)


def words_like(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int32, device=META)


OPERATIONS: dict[str, Callable[[VramPlanes, int], object]] = {
    "lookup": lambda planes, n: vram_ops.lookup(planes, keys_like(n)),
    "longest": lambda planes, n: vram_ops.longest(planes, keys_like(n, 4)),
    "insert": lambda planes, n: vram_insert.insert(planes, keys_like(n), rows_like(n), evict=False),
    "insert_evicting": lambda planes, n: vram_insert.insert(planes, keys_like(n), rows_like(n), evict=True),
    "remove": lambda planes, n: vram_ops.remove(planes, keys_like(n)),
    "feedback": lambda planes, n: vram_ops.feedback(planes, keys_like(n), words_like(n), words_like(n)),
    "mark_used": lambda planes, n: vram_ops.mark_used(planes, keys_like(n)),
    "oldest": lambda planes, n: vram_ops.oldest(planes, 0, planes.slots, min(n, planes.slots)),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("count", [1, 33])
def test_no_operation_waits_for_the_device(operation: str, count: int, planes: VramPlanes) -> None:
    with Operators() as operators:
        OPERATIONS[operation](planes, count)
    assert operators.count > 0


def test_lookup_answers_have_the_shapes_of_the_question(planes: VramPlanes) -> None:
    hit, slot, rows = vram_ops.lookup(planes, keys_like(5))
    assert (hit.dtype, slot.dtype, rows.dtype) == (torch.bool, torch.int64, torch.int32)
    assert (hit.shape, slot.shape, rows.shape) == ((5,), (5,), (5, WORDS))
    assert vram_ops.longest(planes, keys_like(5, 4))[0].shape == (5,)


def test_a_lookup_is_few_operators(planes: VramPlanes) -> None:
    """On a GPU without a graph each costs a launch, some 5 us: 36, and 7 views, when this was written."""
    with Operators() as operators:
        vram_ops.lookup(planes, keys_like(5))
    assert operators.count <= 50


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum().item(),
        lambda x: x[x != 0],
        lambda x: x.index_put_((x != 0,), x.sum()),
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: bool(x.any()),
        lambda x: x + torch.ones(4, dtype=torch.int64),
        lambda x: x.copy_(torch.tensor([1, 2, 3, 4])),
    ],
)
def test_this_check_notices(wrong: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), Operators():
        wrong(keys_like(4))
