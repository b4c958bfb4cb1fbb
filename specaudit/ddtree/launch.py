"""Launching a compiled kernel again, at a fraction of Triton's own cost on the host.

`kernel[grid](…)` asks of every argument, every time, which variant of the kernel it needs: some 30 us for twenty of
them, several times a decode step whose GPU work may be 400 us. What the answer depends on is cheap to compare (types,
alignment, the values of numbers), and a compiled kernel can be launched as it is, as Triton's tutorials do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor


def _variant(args: tuple[Any, ...]) -> list[Any]:
    return [(x.dtype, x.data_ptr() % 16) if isinstance(x, Tensor) else x for x in args]


class Fixed(tuple[Any, ...]):
    """Arguments that stay the same ones, so that what they need is asked once; `variant` numbers it."""

    variant: int
    _variants: dict[tuple[Any, ...], int] = {}  # noqa: RUF012 (of all of them)

    @staticmethod
    def of(*args: Any) -> Fixed:
        fixed = Fixed(args)
        fixed.variant = Fixed._variants.setdefault(tuple(_variant(args)), len(Fixed._variants))
        return fixed


NOTHING = Fixed.of()


class relaunched:
    """Around triton.jit: `kernel[grid](*args, *fixed, **constants, num_warps=…, num_stages=…)` as ever.

    The constants are the kernel's last ones, in its order. A launch returns the compiled kernel, or None where kernels
    are interpreted.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.__name__, self.arg_names = kernel, kernel.__name__, kernel.arg_names
        # Of these numbers Triton asks the width alone.
        self._any = [i for i, p in enumerate(getattr(kernel, "params", ())) if p.do_not_specialize]
        # Device and variant -> what Triton compiled. Other numbers are part of the variant by their value, sizes and
        # strides, of which there are few. A place always has an int, or always a float.
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._launch, grid)

    def _launch(
        self,
        grid: tuple[int, ...],
        *args: Any,
        fixed: Fixed = NOTHING,
        num_warps: int | None = None,
        num_stages: int | None = None,
        **constants: Any,
    ) -> Any:
        given, last, variant = (*args, *fixed), constants.values(), _variant(args)
        for i in self._any:
            variant[i] = args[i] >> 31
        key = (num_warps, num_stages, args[0].get_device(), *last, *variant, fixed.variant)
        known = self._compiled.get(key)
        if known is not None:
            known[(*grid, 1, 1)](*given, *last)
            return known
        assert self.arg_names[len(given) :] == list(constants), "constants in the kernel's order"
        options = {"num_warps": num_warps, "num_stages": num_stages}
        made = self.kernel[grid](*given, **constants, **{name: x for name, x in options.items() if x is not None})
        if made is not None:
            self._compiled[key] = made
        return made


def cdiv(a: int, b: int) -> int:
    """As triton.cdiv, which may be called in kernels, too, and takes 8 us for that."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The next power of two, n itself if it is one; as triton.next_power_of_2."""
    return 1 << (n - 1).bit_length()
