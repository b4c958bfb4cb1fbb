"""Places that tests find before they change the environment."""

from __future__ import annotations

from specaudit.cache import folder

#: The user's cache, where releases and tools stay between runs; whatever else tests keep is the run's.
USERS_CACHE = folder()
