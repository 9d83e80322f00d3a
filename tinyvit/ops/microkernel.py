"""The micro-kernel: a small tile of a matrix product that stays in the processor's registers.

    c[i, j] (+)= Σ_p x[u[p] + v[i]] b[p, j]        i < GR, j < NR, p < depth

Each step p loads NR values of b as vectors, and multiplies them with GR values of x, one at a time copied into all lanes:
GR + NR loads for GR·NR multiply-adds, and no store until the end. Loops in numba do not get there, since LLVM does not
keep a tile in registers by itself, so the tile is written as LLVM code, instruction by instruction (`_emit`).
The scheme is that of GotoBLAS and BLIS (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication").

The left matrix is found in place: u and v say where its columns and rows are in x. For a matrix in rows of length n that
is u[p] = p, v[i] = i n, for its transpose the other way round. For a convolution u holds the offsets of the taps and v those
of the pixels, and x[u[p] + v[i]] is the im2col matrix, without its ever being made (after Dukhan 2019, "The Indirect
Convolution Algorithm", arXiv:1907.02129).

The right matrix is packed in *panels*: strips NR wide, stored step after step so that the tile reads them from front to back,
panel[p·NR + j] = b[p, first + j], filled up with zeros over the matrix' edge.

Arrays are float32 and C-contiguous, of any number of dimensions; `v0`, `b0`, `c0` count elements from the start of the
memory. `add` false overwrites c. Nothing is checked: a panel or a tile of c that reaches out of its array is a crash.
"""

from __future__ import annotations

import numpy as np

from ..backend import device, lazy_device


def _vector_length() -> int:
    """float32 values in one register: 16 with AVX-512, 8 with AVX2, else 4 (SSE, NEON), which runs everywhere."""
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})  # type: ignore[union-attr]
    have = {*simd.get("baseline", ()), *simd.get("found", ())}
    return 16 if have & {"X86_V4", "AVX512_SKX"} else 8 if have & {"X86_V3", "AVX2"} else 4


# Rows and vectors of a tile: with the vectors of b and one of x they nearly fill the 16 registers of AVX2, or the 32 of
# AVX-512 and NEON. A tile also keeps a pointer for each row, for which there are 16 other registers.
VL = _vector_length()
GR, VECTORS = {16: (8, 2), 8: (6, 2), 4: (6, 4)}[VL]
NR = VECTORS * VL


def _emit(builder, rows: int, vectors: int, depth, load_a, load_b, at_c, add) -> None:
    """The tile's code: `load_a(p, i)` is a float, `load_b(p, j)` a vector, `at_c(i, j)` points to one.

    The sums live in stack slots here; LLVM turns those into registers.
    """
    from llvmlite import ir
    from numba.core import cgutils

    vector, i32 = ir.VectorType(ir.FloatType(), VL), ir.IntType(32)
    fma = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{VL}f32")
    undefined, first_lane = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(i32, VL), [0] * VL)
    sums = [[cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(vectors)] for _ in range(rows)]
    with cgutils.for_range(builder, depth) as loop:
        b = [load_b(loop.index, j) for j in range(vectors)]
        for i in range(rows):
            lane = builder.insert_element(undefined, load_a(loop.index, i), i32(0))
            a = builder.shuffle_vector(lane, undefined, first_lane)
            for j in range(vectors):
                builder.store(builder.call(fma, [a, b[j], builder.load(sums[i][j])]), sums[i][j])
    with builder.if_else(add) as (adding, replacing):
        for branch, before in ((adding, True), (replacing, False)):
            with branch:
                for i in range(rows):
                    for j in range(vectors):
                        total = builder.load(sums[i][j])
                        if before:
                            total = builder.fadd(total, builder.load(at_c(i, j), align=4))
                        builder.store(total, at_c(i, j), align=4)


class _Pointers:
    """Address arithmetic, in units of array elements."""

    def __init__(self, context, builder, signature, args):
        from llvmlite import ir

        self.context, self.builder, self.signature, self.args = context, builder, signature, args
        self.int = ir.IntType(64)
        self.vector = ir.VectorType(ir.FloatType(), VL).as_pointer()

    def data(self, argument: int, offset=None):
        """Where the memory of that (array) argument starts, plus an offset."""
        array = self.context.make_array(self.signature.args[argument])(self.context, self.builder, self.args[argument])
        return array.data if offset is None else self.builder.gep(array.data, [offset])

    def value(self, start, *terms):
        """Element `start[sum of terms]`."""
        return self.builder.load(self.at(start, *terms))

    def at(self, start, *terms):
        total = self.int(0)
        for term in terms:
            total = self.builder.add(total, self.int(term) if isinstance(term, int) else term)
        return self.builder.gep(start, [total])

    def vector_at(self, start, *terms):
        return self.builder.bitcast(self.at(start, *terms), self.vector)


def _gather_tile(vectors: int):
    from numba import types
    from numba.extending import intrinsic

    n = types.intp

    @intrinsic
    def gather_tile(typingctx, x, u, v, v0, b, b0, depth, c, c0, ldc, add):
        def codegen(context, builder, signature, args):
            _, _, _, v0, _, b0, depth, _, c0, ldc, add = args
            at = _Pointers(context, builder, signature, args)
            x, u, v, b, c = at.data(0), at.data(1), at.data(2, v0), at.data(4, b0), at.data(7, c0)
            rows = [at.at(x, at.value(v, i)) for i in range(GR)]
            _emit(builder, GR, vectors, depth,
                  lambda p, i: at.value(rows[i], at.value(u, p)),
                  lambda p, j: builder.load(at.vector_at(b, builder.mul(p, at.int(NR)), VL * j), align=4),
                  lambda i, j: at.vector_at(c, builder.mul(ldc, at.int(i)), VL * j), add)
            return context.get_dummy_value()

        return types.void(x, u, v, n, b, n, n, c, n, n, types.boolean), codegen

    return gather_tile


@lazy_device
def gather_tile():
    """c[c0 + i·ldc + j] (+)= Σ_p x[u[p] + v[v0 + i]] b[b0 + p·NR + j], i < GR, j < NR; u and v are int64 arrays."""
    return _gather_tile(VECTORS)


@lazy_device
def narrow_gather_tile():
    """`gather_tile` for the first VL columns only: j < VL. For a last panel that is not even half full."""
    return _gather_tile(1)


@lazy_device
def copy_run():
    """target[t0 + i] = source[s0 + i] for i < count: memcpy, which beats a loop of numba's on short runs."""
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    n = types.intp

    @intrinsic
    def copy_run(typingctx, source, s0, target, t0, count):
        def codegen(context, builder, signature, args):
            at = _Pointers(context, builder, signature, args)
            cgutils.raw_memcpy(builder, at.data(2, args[3]), at.data(0, args[1]), args[4], 4)
            return context.get_dummy_value()

        return types.void(source, n, target, n, n), codegen

    return copy_run


@lazy_device
def transpose_block():
    """target[t0 + j·ldt + i] = source[s0 + i·lds + j] for i, j < VL: a square goes through the registers, no gathers."""
    from numba import types
    from numba.extending import intrinsic

    n = types.intp

    @intrinsic
    def transpose_block(typingctx, source, s0, lds, target, t0, ldt):
        def codegen(context, builder, signature, args):
            from llvmlite import ir

            _, s0, lds, _, t0, ldt = args
            at = _Pointers(context, builder, signature, args)
            source, target = at.data(0, s0), at.data(3, t0)
            rows = [builder.load(at.vector_at(source, builder.mul(lds, at.int(i))), align=4) for i in range(VL)]
            for half in (VL // 2 >> k for k in range(VL.bit_length() - 1)):
                # Rows i and i + half swap the off-diagonal squares of side `half`.
                for i in (i for i in range(VL) if not i & half):
                    low = [j if not j & half else VL + j - half for j in range(VL)]
                    high = [j + half if not j & half else VL + j for j in range(VL)]
                    mask = lambda lanes: ir.Constant(ir.VectorType(ir.IntType(32), VL), lanes)
                    a, b = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (builder.shuffle_vector(a, b, mask(m)) for m in (low, high))
            for j in range(VL):
                builder.store(rows[j], at.vector_at(target, builder.mul(ldt, at.int(j))), align=4)
            return context.get_dummy_value()

        return types.void(source, n, n, target, n, n), codegen

    return transpose_block


@device
def transpose(source, s0, lds, rows, columns, target, t0, ldt):
    """target[t0 + j·ldt + i] = source[s0 + i·lds + j] for i < rows, j < columns; both 1-D."""
    for i0 in range(0, rows, VL):
        for j0 in range(0, columns, VL):
            s, t = s0 + i0 * lds + j0, t0 + j0 * ldt + i0
            if i0 + VL <= rows and j0 + VL <= columns:
                transpose_block(source, s, lds, target, t, ldt)
            else:
                for j in range(min(VL, columns - j0)):
                    for i in range(min(VL, rows - i0)):
                        target[t + j * ldt + i] = source[s + i * lds + j]
