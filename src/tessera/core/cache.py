"""Caches that are bounded in bytes, for answers to what tenants or nodes write: entries alone would be no bound."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Generic, ParamSpec, TypeVar

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")


class ByteCache(Generic[K, V]):
    """Values by their keys, bounded in bytes; the oldest go first."""

    def __init__(self, most: int, largest: int) -> None:
        """Keep so many bytes at most, and no value that is larger with its key than `largest`."""
        self._most = most
        self._largest = largest
        self._values: dict[K, V] = {}
        self._sizes: dict[K, int] = {}
        self.bytes = 0
        self.is_overflowing = False  # whether values had to go since it was cleared
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value, unless it is too large; `size` counts the bytes of the key, too."""
        if key in self._sizes:
            del self._values[key]
            self.bytes -= self._sizes.pop(key)
        if size > self._largest:
            return
        self.bytes += size
        while self.bytes > self._most:
            self.is_overflowing = True
            oldest = next(iter(self._values))
            del self._values[oldest]
            self.bytes -= self._sizes.pop(oldest)
        self._values[key], self._sizes[key] = value, size

    def clear(self) -> None:
        self._values.clear()
        self._sizes.clear()
        self.bytes, self.is_overflowing = 0, False


def cache_short(
    entries: int, longest: int, length: Callable[..., int]
) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Make an `lru_cache` that keeps no arguments longer than `longest` characters, as `length` counts them."""

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        cached = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> V:
            if length(*args, **kwargs) > longest:
                return function(*args, **kwargs)
            return cached(*args, **kwargs)  # type: ignore[arg-type] # as with lru_cache: all can be hashed

        return call

    return decorate
