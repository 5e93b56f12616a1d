"""Two register tiles for numba kernels, written as LLVM vectors: query rows x 32 keys, and weights x 32 values.

Exists because LLVM, given the loops, keeps the sums in memory: 1.4 to 1.9 times slower than tiles whose sums stay in
registers. Knows words and offsets only; no softmax, no blocks, no torch. Nothing here checks a bound.

Keys and values come as words. float32: one number. 16-bit floats: two, the lower half first, that are multiplied with
neighbouring factors: for keys two dims of one token, for values two tokens of one dim. int32 words are bfloat16, uint32
words float16 (numba has neither type, and the two integers tell it which). Factors (queries, weights) are float32, or
int32 words of two bfloat16: those need AVX-512 BF16, whose VDPBF16PS multiplies 32 numbers where an FMA does 16, and
does it without widening them first.
"""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from flashnest.jit import fused_kernel
from flashnest.record import CHUNK_TOKENS, F32Array

WordArray = npt.NDArray[np.float32] | npt.NDArray[np.int32] | npt.NDArray[np.uint32]
"""Flat words: float32 numbers, int32 pairs of bfloat16, uint32 pairs of float16."""
FactorArray = npt.NDArray[np.float32] | npt.NDArray[np.int32]
"""Flat float32 numbers or int32 pairs of bfloat16."""


def _features() -> frozenset[str]:
    """Return the CPU features that numba compiles for; NUMBA_CPU_NAME alone means none that we rely on."""
    if config.CPU_FEATURES is not None:
        return frozenset(name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+"))
    if config.CPU_NAME is not None:
        return frozenset()
    return frozenset(name for name, present in llvmlite.binding.get_host_cpu_features().items() if present)


HAS_BFLOAT16_DOT: Final = {"avx512f", "avx512bf16"} <= _features()
"""Whether numba may emit VDPBF16PS here."""

LANES: Final = 16 if "avx512f" in _features() else 8
"""float32 numbers in a register."""

TILE_ROWS: Final = 6 if LANES == 16 else 4
"""Rows of the largest tile: with two registers of sums a row, 12 of AVX-512's 32, or 8 of AVX2's 16."""

WIDTH_STEP: Final = 16
"""Head dims are multiples of it."""

_HAS_HALF: Final = "f16c" in _features() or llvmlite.binding.get_process_triple().startswith(("aarch64", "arm64"))

_I32, _F32 = ir.IntType(32), ir.FloatType()
_FLOATS, _WORDS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


def _constant(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * LANES)


class _Tile:
    """Emits one tile's code: `rows` factors a step against `columns` registers of words."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any, rows: int, columns: int) -> None:
        self.builder, self.rows, self.columns = builder, rows, columns
        factor_type, word_type = signature.args[1].dtype, signature.args[4].dtype
        self.word, self.paired = word_type, word_type != types.float32
        self.dots = factor_type == types.int32
        self.factor = _I32 if self.dots else _F32
        self.pointers = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]

    def load(self, pointer: Any, offset: Any, kind: Any) -> Any:
        """Return one number or register of `kind`, `offset` numbers after `pointer`."""
        place = self.builder.gep(pointer, [offset])
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=4)

    def prefetch(self, pointer: Any, offset: Any) -> None:
        """Ask for the line that holds the number, which may not be there to read: for reading, into every cache."""
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.args[0])
        self.builder.call(function, [place, *(ir.Constant(_I32, flag) for flag in (0, 3, 1))])

    def store(self, value: Any, pointer: Any, offset: Any) -> None:
        place = self.builder.gep(pointer, [offset])
        self.builder.store(value, self.builder.bitcast(place, value.type.as_pointer()), align=4)

    def splat(self, value: Any) -> Any:
        """Return a register full of `value`."""
        vector = ir.VectorType(value.type, LANES)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(first, first, ir.Constant(_WORDS, [0] * LANES))

    def fma(self, a: Any, b: Any, total: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return self.builder.call(function, [a, b, total])

    def dot(self, total: Any, a: Any, b: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS, _WORDS, _WORDS])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [total, a, b])

    def widen(self, words: Any) -> tuple[Any, ...]:
        """Return the words' numbers as float32 registers: one, or those of the lower and of the upper halves."""
        if not self.paired:
            return (words,)
        sixteen = _constant(_WORDS, 16)
        if self.word == types.int32:
            halves = self.builder.shl(words, sixteen), self.builder.and_(words, _constant(_WORDS, 0xFFFF0000))
            return tuple(self.builder.bitcast(half, _FLOATS) for half in halves)
        return tuple(self._half(half) for half in (words, self.builder.lshr(words, sixteen)))

    def _half(self, words: Any) -> Any:
        """Return float16 numbers, in the words' lower halves, as float32."""
        build = self.builder
        if _HAS_HALF:
            bits = build.trunc(words, ir.VectorType(ir.IntType(16), LANES))
            return build.fpext(build.bitcast(bits, ir.VectorType(ir.HalfType(), LANES)), _FLOATS)
        size = build.shl(build.and_(words, _constant(_WORDS, 0x7FFF)), _constant(_WORDS, 13))
        # The exponent is 112 too small in the float32 layout; the product mends subnormals too.
        number = build.fmul(build.bitcast(size, _FLOATS), _constant(_FLOATS, 2.0**112))
        sign = build.shl(build.and_(words, _constant(_WORDS, 0x8000)), _constant(_WORDS, 16))
        return build.bitcast(build.or_(build.bitcast(number, _WORDS), sign), _FLOATS)

    def accumulate(
        self, sums: list[Any], steps: Any, factors: tuple[Any, Any, Any], words: tuple[Any, Any], ahead: Any
    ) -> None:
        """Add factor x word to `sums` (allocas, row by row) for each step.

        factors: pointer, offset, stride between rows; words: offset of the first, stride between steps. The words that
        lie `ahead` of these are fetched meanwhile.
        """
        build, pointer = self.builder, self.pointers[4]
        size = ir.Constant(steps.type, 2 if self.paired and not self.dots else 1)
        with cgutils.for_range(build, steps) as loop:
            start = build.add(words[0], build.mul(loop.index, words[1]))
            kind = _WORDS if self.paired else _FLOATS
            places = [build.add(start, ir.Constant(start.type, LANES * column)) for column in range(self.columns)]
            loaded = [self.load(pointer, place, kind) for place in places]
            for place in places:
                self.prefetch(pointer, build.add(place, ahead))
            parts = [(words,) if self.dots else self.widen(words) for words in loaded]
            for row in range(self.rows):
                at = build.add(factors[1], build.mul(factors[2], ir.Constant(start.type, row)))
                at = build.add(at, build.mul(loop.index, size))
                for half in range(len(parts[0])):
                    factor = self.splat(self.load(factors[0], build.add(at, ir.Constant(at.type, half)), self.factor))
                    for column in range(self.columns):
                        place = sums[row * self.columns + column]
                        total, part = build.load(place), parts[column][half]
                        added = self.dot(total, factor, part) if self.dots else self.fma(factor, part, total)
                        build.store(added, place)


def _signature(rows: Any, *arguments: Any) -> Any:
    """Return the tile's signature: every whole number is an index, and only `rows` stays a literal."""
    kinds = (types.intp if isinstance(types.unliteral(kind), types.Integer) else kind for kind in arguments)
    return types.void(rows, *(types.unliteral(kind) for kind in kinds))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]  # numba has no types
def score_tile(
    typing: Any,
    rows: Any,
    queries: Any,
    query: Any,
    stride: Any,
    keys: Any,
    key: Any,
    steps: Any,
    scale: Any,
    scores: Any,
    score: Any,
    ahead: Any,
) -> Any:
    """Write scale x (query . key) of `rows` (a literal) queries and one block's 32 keys.

    queries flat: row r starts at query + r * stride; keys flat: `steps` words of each key, 32 keys side by side, from
    `key`; scores float32 flat: row r starts at score + 32 r. The block `ahead` is fetched. All offsets in elements.
    """
    signature = _signature(rows, queries, query, stride, keys, key, steps, scale, scores, score, ahead)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        count = signature.args[0].literal_value
        tile = _Tile(context, builder, signature, values, count, 2)
        _, queries, query, stride, _, key, steps, scale, scores, score, ahead = tile.pointers
        key_stride = ir.Constant(key.type, CHUNK_TOKENS)
        for start in range(0, CHUNK_TOKENS, 2 * LANES):
            sums = [cgutils.alloca_once_value(builder, _constant(_FLOATS, 0.0)) for _ in range(2 * count)]
            for place in sums:
                builder.store(_constant(_FLOATS, 0.0), place)
            first = builder.add(key, ir.Constant(key.type, start))
            tile.accumulate(sums, steps, (queries, query, stride), (first, key_stride), ahead)
            for number, place in enumerate(sums):
                row, column = divmod(number, 2)
                at = builder.add(score, ir.Constant(score.type, row * CHUNK_TOKENS + start + column * LANES))
                tile.store(builder.fmul(builder.load(place), tile.splat(scale)), scores, at)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]  # numba has no types
def blend_tile(
    typing: Any,
    rows: Any,
    weights: Any,
    weight: Any,
    stride: Any,
    values: Any,
    value: Any,
    width: Any,
    decays: Any,
    decay: Any,
    sums: Any,
    total: Any,
    ahead: Any,
) -> Any:
    """Turn each of `rows` (a literal) sums into decay x sum + weights . values of one block's 32 tokens.

    weights flat: row r starts at weight + r * stride; values flat: a step's `width` words side by side, from `value`;
    decays float32 flat: row r at decay + r; sums float32 flat: row r starts at total + r * width. width is a multiple
    of 16.
    """
    signature = _signature(rows, weights, weight, stride, values, value, width, decays, decay, sums, total, ahead)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        count = signature.args[0].literal_value
        tile = _Tile(context, builder, signature, values, count, 2)
        width = tile.pointers[6]
        pair = ir.Constant(width.type, 2 * LANES)
        pairs = builder.udiv(width, pair)
        with cgutils.for_range(builder, pairs) as loop:
            _blend(tile, count, builder.mul(loop.index, pair))
        if LANES > 8:  # a width of 16, 48, 80 ... ends in one register
            with builder.if_then(builder.icmp_unsigned("!=", builder.urem(width, pair), ir.Constant(width.type, 0))):
                tile.columns = 1
                _blend(tile, count, builder.mul(pairs, pair))
        return context.get_dummy_value()

    return signature, generate


def _blend(tile: _Tile, count: int, start: Any) -> None:
    _, weights, weight, stride, _, value, width, decays, decay, sums, total, ahead = tile.pointers
    build = tile.builder
    places, offsets = [], []
    for row in range(count):
        factor = tile.splat(tile.load(decays, build.add(decay, ir.Constant(decay.type, row)), _F32))
        for column in range(tile.columns):
            at = build.add(total, build.mul(width, ir.Constant(width.type, row)))
            offsets.append(build.add(build.add(at, start), ir.Constant(start.type, column * LANES)))
            former = build.fmul(factor, tile.load(sums, offsets[-1], _FLOATS))
            places.append(cgutils.alloca_once(build, _FLOATS))
            build.store(former, places[-1])
    steps = ir.Constant(width.type, CHUNK_TOKENS // 2 if tile.paired else CHUNK_TOKENS)
    tile.accumulate(places, steps, (weights, weight, stride), (build.add(value, start), width), ahead)
    for place, at in zip(places, offsets, strict=True):
        tile.store(build.load(place), sums, at)


@fused_kernel
def score_rows(
    queries: FactorArray,
    keys: WordArray,
    key: int,
    ahead: int,
    words: int,
    scale: np.float32,
    rows: int,
    scores: F32Array,
) -> None:
    """Write scale x (query . key) of `rows` queries and 32 keys, float32 (rows * 32,); the rest as in `score_tile`."""
    stride = queries.shape[0] // rows
    row = 0
    while row + TILE_ROWS <= rows:
        at = row * CHUNK_TOKENS
        score_tile(TILE_ROWS, queries, row * stride, stride, keys, key, words, scale, scores, at, ahead)
        row += TILE_ROWS
    query, at, left = row * stride, row * CHUNK_TOKENS, rows - row
    if left == 5:
        score_tile(5, queries, query, stride, keys, key, words, scale, scores, at, ahead)
    elif left == 4:
        score_tile(4, queries, query, stride, keys, key, words, scale, scores, at, ahead)
    elif left == 3:
        score_tile(3, queries, query, stride, keys, key, words, scale, scores, at, ahead)
    elif left == 2:
        score_tile(2, queries, query, stride, keys, key, words, scale, scores, at, ahead)
    elif left == 1:
        score_tile(1, queries, query, stride, keys, key, words, scale, scores, at, ahead)
