"""Launching a compiled kernel again, at a fraction of Triton's own cost on the host.

`kernel[grid](…)` asks of every argument, every time, which variant of the kernel it needs: some 30 us for twenty of
them, several times a decode step whose GPU work may be 400 us. What the answer depends on is cheap to compare (types,
alignment, the values of numbers), and a compiled kernel can be launched as it is, as Triton's tutorials do.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

#: Kernel (by address, so it is kept), device, variant -> it, and what Triton compiled. Numbers are part of the variant
#: by their value, whether Triton looks at it or not: they are few, sizes and counts of requests.
_compiled: dict[tuple[Any, ...], tuple[Any, Any]] = {}


def _variant(x: Any) -> tuple[Any, Any]:
    return (x.dtype, x.data_ptr() % 16) if isinstance(x, Tensor) else (x.__class__, x)


class Fixed(tuple[Any, ...]):
    """Arguments that stay the same ones, so that what they need is asked once."""

    variant: tuple[Any, ...]

    @staticmethod
    def of(*args: Any) -> Fixed:
        fixed = Fixed(args)
        fixed.variant = tuple(map(_variant, args))
        return fixed


NOTHING = Fixed.of()


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    fixed: Fixed = NOTHING,
    num_warps: int | None = None,
    num_stages: int | None = None,
    **constants: Any,
) -> Any:
    """`kernel[grid](*args, *fixed, **constants, num_warps=…, num_stages=…)`; constants are the kernel's last ones.

    Returns the compiled kernel, None where kernels are interpreted.
    """
    given, last = (*args, *fixed), constants.values()
    key = (id(kernel), num_warps, num_stages, args[0].get_device(), *last, *map(_variant, args), *fixed.variant)
    known = _compiled.get(key)
    if known is not None:
        known[1][(*grid, 1, 1)](*given, *last)
        return known[1]
    assert kernel.arg_names[len(given) :] == list(constants), "constants in the kernel's order"
    options = {"num_warps": num_warps, "num_stages": num_stages}
    made = kernel[grid](*given, **constants, **{name: x for name, x in options.items() if x is not None})
    if made is not None:
        _compiled[key] = kernel, made
    return made


def cdiv(a: int, b: int) -> int:
    """As triton.cdiv, which may be called in kernels, too, and takes 8 us for that."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The next power of two, n itself if it is one; as triton.next_power_of_2."""
    return 1 << (n - 1).bit_length()
