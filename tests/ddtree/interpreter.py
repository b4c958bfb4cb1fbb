"""Triton's interpreter patches the language anew for every call of a device function, a third of a kernel's time.

Within one launch nothing takes the patches back, so the first call from a module does for all of them.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any


def patch_once_per_launch() -> None:
    """Makes it so, for this process. ``TRITON_INTERPRET`` must be set: triton reads it when it is imported."""
    from triton.runtime import interpreter

    patched: set[frozenset[ModuleType]] = set()
    launch = interpreter.GridExecutor.__call__

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        languages = (interpreter.tl, interpreter.tl.core)
        seen = frozenset(m for m in self.fn.__globals__.values() if inspect.ismodule(m) and m in languages)
        if seen not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(seen)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as failed:
            raise interpreter.InterpreterError(repr(failed)) from failed

    interpreter.GridExecutor.__call__ = launched
    interpreter.InterpretedFunction.__call__ = called
