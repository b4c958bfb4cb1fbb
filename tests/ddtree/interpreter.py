"""Two shortcuts for Triton's interpreter, which do not change what it computes.

It patches the language anew for every call of a device function; within one launch nothing takes the patches back, so
the first call from a module does for all of them. And it folds by exclusive or, as every sort does, element by element,
where numpy has that as one call, as it has the sums and maxima that the interpreter gives to it.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import numpy as np


def make_quick() -> None:
    """Takes them, in this process. ``TRITON_INTERPRET`` must be set: triton reads it when it is imported."""
    from triton.runtime import interpreter

    _patch_once_per_launch(interpreter)
    _xor_by_numpy(interpreter)


def _patch_once_per_launch(interpreter: Any) -> None:
    patched: set[frozenset[ModuleType]] = set()
    languages: dict[int, frozenset[ModuleType]] = {}
    launch = interpreter.GridExecutor.__call__

    def language_of(names: dict[str, Any]) -> frozenset[ModuleType]:
        if id(names) not in languages:  # of few modules, which stay
            modules = [value for value in names.values() if inspect.ismodule(value)]
            languages[id(names)] = frozenset(m for m in modules if m in (interpreter.tl, interpreter.tl.core))
        return languages[id(names)]

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        language = language_of(self.fn.__globals__)
        if language not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(language)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as failed:
            raise interpreter.InterpreterError(repr(failed)) from failed

    interpreter.GridExecutor.__call__ = launched
    interpreter.InterpretedFunction.__call__ = called


def _xor_by_numpy(interpreter: Any) -> None:
    reduce = interpreter.ReduceOps.apply_impl

    def reduced(self: Any, input: Any) -> Any:
        if self.combine_fn != interpreter.tl.standard._xor_combine:
            return reduce(self, input)
        (one,) = input
        folded = np.bitwise_xor.reduce(one.handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(folded, one.dtype)

    interpreter.ReduceOps.apply_impl = reduced
