"""Source of the kernels that multiply with warpgroups: wgmma.cuh, products, the kernels' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

DEPTH = 64  # numbers along k of one step
ROW_BYTES = 2 * DEPTH
PRODUCTS_MARK = "// -- PRODUCTS OF THE HOST --\n"
NumberType = Literal["f16", "bf16"]


def complete_source(paths: Sequence[Path], number_type: NumberType, columns: Sequence[int]) -> str:
    """The files after the shared parts, with `wgmma` for these numbers of columns."""
    shared = Path(__file__).with_name("wgmma.cuh").read_text()
    products = "".join(_product(number_type, count) for count in columns)
    return shared.replace(PRODUCTS_MARK, products) + "".join(path.read_text() for path in paths)


def _product(number_type: NumberType, columns: int) -> str:
    """`wgmma` of 64 rows, `columns` columns and 16 numbers; rows in registers or shared memory."""
    count = columns // 2  # sums of a thread
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    words = ", ".join(f"%{count + i}" for i in range(4))
    shape = f"m64n{columns}k16.f32.{number_type}.{number_type}"
    operation = f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}"
    return f"""
template <> DEVICE void wgmma<{columns}>(float (&sums)[{count}], const u32* a, u64 b) {{
    asm volatile("{operation}, {{{words}}}, %{count + 4}, 1, 1, 1, 0;" : {outputs}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}
template <> DEVICE void wgmma<{columns}>(float (&sums)[{count}], u64 a, u64 b) {{
    asm volatile("{operation}, %{count}, %{count + 1}, 1, 1, 1, 0, 0;" : {outputs}
                 : "l"(a), "l"(b));
}}
"""
