"""Machine operations that numba has no words for: prefetch, compare eight keys at once, ordered loads and stores.

Each is one or two LLVM instructions, so they run on any CPU that LLVM targets. Owns no memory and checks no bounds:
callers guarantee that an index is inside the array and that an address is alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from flashnest.jit import inline_kernel
from flashnest.record import F64Array, I32Array, I64Array, U8Array, U16Array, U32Array, U64Array

LINE_BYTES: Final = 64
"""Bytes in a cache line."""

_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_Codegen = Callable[[Any, Any, Any, Any], Any]


def _address(context: Any, builder: Any, array_type: Any, array: Any, item: Any) -> Any:
    """Return the i8 pointer to element `item` (flat, row-major) of a contiguous array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [item]), _I8.as_pointer())


def _vector_pointer(builder: Any, address: Any, element: Any, lanes: int) -> Any:
    return builder.bitcast(address, ir.VectorType(element, lanes).as_pointer())


def _prefetch(write: int) -> Callable[..., Any]:
    def typed(typing_context: Any, array: Any, item: Any) -> tuple[Any, _Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address = _address(context, builder, signature.args[0], args[0], args[1])
            function_type = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
            function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
            builder.call(function, [address, _I32(write), _I32(3), _I32(1)])
            return context.get_dummy_value()

        return types.void(array, types.uint64), codegen

    return typed


def _match_line(typing_context: Any, keys: Any, item: Any, key: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        line = builder.load(_vector_pointer(builder, address, _I64, 8), align=64)
        wanted = ir.Constant(ir.VectorType(_I64, 8), ir.Undefined)
        for lane in range(8):
            wanted = builder.insert_element(wanted, args[2], _I32(lane))
        equal = builder.icmp_unsigned("==", line, wanted)
        return builder.zext(builder.bitcast(equal, _I8), _I64)

    return types.uint64(keys, types.uint64, types.uint64), codegen


def _first_bit(typing_context: Any, mask: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], _I1(1))

    return types.uint64(types.uint64), codegen


_TOKEN_BYTES = ((0, 2, 4, 6), (7, 9, 11, 12))
_TOKEN_SHIFTS = ((0, 2, 4, 6), (0, 2, 4, 14))


def _unpack_18(typing_context: Any, packed: Any, at: Any, out: Any, to: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row = _address(context, builder, signature.args[0], args[0], args[1])
        into = _address(context, builder, signature.args[2], args[2], args[3])
        tokens = []
        for half in range(2):
            source = builder.gep(row, [_I64(14 + 2 * half)])
            data = builder.load(_vector_pointer(builder, source, _I8, 16), align=1)
            picked = [byte + j for byte in _TOKEN_BYTES[half] for j in range(4)]
            spread = builder.shuffle_vector(data, data, ir.Constant(ir.VectorType(_I32, 16), picked))
            lanes = builder.bitcast(spread, ir.VectorType(_I32, 4))
            shifted = builder.lshr(lanes, ir.Constant(ir.VectorType(_I32, 4), list(_TOKEN_SHIFTS[half])))
            tokens.append(builder.and_(shifted, ir.Constant(ir.VectorType(_I32, 4), [(1 << 18) - 1] * 4)))
        for half in range(2):
            place = builder.gep(into, [_I64(16 * half)])
            builder.store(tokens[half], _vector_pointer(builder, place, _I32, 4), align=4)
        return context.get_dummy_value()

    return types.void(packed, types.uint64, out, types.uint64), codegen


def _pointer(typing_context: Any, address: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


def _load_acquire(typing_context: Any, array: Any, item: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(builder.bitcast(address, _I32.as_pointer()), "acquire", 4)

    return types.uint32(array, types.uint64), codegen


def _store_release(typing_context: Any, array: Any, item: Any, value: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], builder.bitcast(address, _I32.as_pointer()), "release", 4)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint32), codegen


def _fence(ordering: str) -> Callable[..., Any]:
    def typed(typing_context: Any) -> tuple[Any, _Codegen]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), codegen

    return typed


def _touch(typing_context: Any, array: Any, item: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        builder.atomic_rmw("or", builder.bitcast(address, _I64.as_pointer()), _I64(0), "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.uint64), codegen


prefetch_keys = cast(Callable[[U64Array, np.uint64], None], intrinsic(_prefetch(0)))
"""Ask for the line of element `item`, to be read soon."""
prefetch_row = cast(Callable[[U64Array, np.uint64], None], intrinsic(_prefetch(1)))
"""Ask for the line of element `item` (flat index), to be written soon."""
match_line = cast(Callable[[U64Array, np.uint64, np.uint64], np.uint64], intrinsic(_match_line))
"""Compare the eight elements from `item` (a multiple of 8, 64-byte aligned) with a key; bit i set where i is equal."""
first_bit = cast(Callable[[np.uint64], np.uint64], intrinsic(_first_bit))
"""Return the index of the lowest set bit; undefined for 0."""
unpack_18 = cast(Callable[[U64Array, np.uint64, U32Array, np.uint64], None], intrinsic(_unpack_18))
"""Write the eight 18-bit numbers from bit 112 of the 32 bytes at element `at` to eight elements from `to` of `out`."""
touch = cast(Callable[[U64Array, np.uint64], None], intrinsic(_touch))
"""Write element `item` as it is, atomically: its page is there afterwards, and no other thread's write is undone."""
load_acquire = cast(Callable[[U32Array, np.uint64], np.uint32], intrinsic(_load_acquire))
"""Read an element; what the writer stored before its `store_release` is seen by what is read after this."""
store_release = cast(Callable[[U32Array, np.uint64, np.uint32], None], intrinsic(_store_release))
"""Write an element after everything that was written before."""
fence_acquire = cast(Callable[[], None], intrinsic(_fence("acquire")))
"""Keep reads before this before the reads after it."""
fence_release = cast(Callable[[], None], intrinsic(_fence("release")))
"""Keep writes before this before the writes after it."""
_pointer_to = cast(Callable[[np.uint64], Any], intrinsic(_pointer))


@inline_kernel
def u8_at(address: np.uint64, size: np.uint64) -> U8Array:
    """View `size` bytes at an address as an array; a kernel's way to memory without an array argument to unbox."""
    view: U8Array = numba.carray(_pointer_to(address), (size,), np.uint8)
    return view


@inline_kernel
def u16_at(address: np.uint64, size: np.uint64) -> U16Array:
    """View `size` uint16 at an address."""
    view: U16Array = numba.carray(_pointer_to(address), (size,), np.uint16)
    return view


@inline_kernel
def u32_at(address: np.uint64, size: np.uint64) -> U32Array:
    """View `size` uint32 at an address."""
    view: U32Array = numba.carray(_pointer_to(address), (size,), np.uint32)
    return view


@inline_kernel
def u64_at(address: np.uint64, size: np.uint64) -> U64Array:
    """View `size` uint64 at an address."""
    view: U64Array = numba.carray(_pointer_to(address), (size,), np.uint64)
    return view


@inline_kernel
def i32_at(address: np.int64, size: np.int64) -> I32Array:
    """View `size` int32 at an address."""
    view: I32Array = numba.carray(_pointer_to(np.uint64(address)), (size,), np.int32)
    return view


@inline_kernel
def i64_at(address: np.int64, size: np.int64) -> I64Array:
    """View `size` int64 at an address."""
    view: I64Array = numba.carray(_pointer_to(np.uint64(address)), (size,), np.int64)
    return view


@inline_kernel
def f64_at(address: np.int64, size: np.int64) -> F64Array:
    """View `size` float64 at an address."""
    view: F64Array = numba.carray(_pointer_to(np.uint64(address)), (size,), np.float64)
    return view
