"""Cache-line operations that numba has no words for: prefetch, compare eight keys at once, copy 64 bytes.

Each is one or two LLVM vector instructions, so they run on any CPU that LLVM targets. Owns no memory and checks no
bounds: callers guarantee that the index is inside the array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from flashnest.record import U32Array, U64Array

LINE_WORDS: Final = 16
"""uint32 words in a 64-byte cache line; a row of the default chain length is exactly one line."""

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


def _copy_line(typing_context: Any, to: Any, to_item: Any, source: Any, item: Any) -> tuple[Any, _Codegen]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into = _address(context, builder, signature.args[0], args[0], args[1])
        out_of = _address(context, builder, signature.args[2], args[2], args[3])
        line = builder.load(_vector_pointer(builder, out_of, _I32, LINE_WORDS), align=4)
        builder.store(line, _vector_pointer(builder, into, _I32, LINE_WORDS), align=4)
        return context.get_dummy_value()

    return types.void(to, types.uint64, source, types.uint64), codegen


prefetch_keys = cast(Callable[[U64Array, np.uint64], None], intrinsic(_prefetch(0)))
"""Ask for the line of element `item`, to be read soon."""
prefetch_row = cast(Callable[[U32Array, np.uint64], None], intrinsic(_prefetch(1)))
"""Ask for the line of element `item` (flat index), to be written soon."""
match_line = cast(Callable[[U64Array, np.uint64, np.uint64], np.uint64], intrinsic(_match_line))
"""Compare the eight elements from `item` (a multiple of 8, 64-byte aligned) with a key; bit i set where i is equal."""
first_bit = cast(Callable[[np.uint64], np.uint64], intrinsic(_first_bit))
"""Return the index of the lowest set bit; undefined for 0."""
copy_line = cast(Callable[[U32Array, np.uint64, U32Array, np.uint64], None], intrinsic(_copy_line))
"""Copy 16 words from flat index `item` of `source` to flat index `to_item` of `to`."""
