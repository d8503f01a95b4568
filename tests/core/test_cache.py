"""Caches that are bounded in bytes."""

from tessera.core.cache import ByteCache, cache_short


def test_a_cache_has_no_more_bytes_than_it_may_have():
    """The oldest values go first, whatever their sizes; one that is too large is not kept."""
    cache = ByteCache[int, str](most=100, largest=60)
    for key, size in ((1, 40), (2, 40), (3, 10), (4, 30), (5, 61)):
        cache.put(key, f"value {key}", size)
    assert [cache.get(key) for key in (1, 2, 3, 4, 5)] == [None, "value 2", "value 3", "value 4", None]
    assert (len(cache), cache.bytes) == (3, 80)


def test_a_value_that_is_put_again_counts_once():
    """Its old size is forgotten; one that has become too large is not kept any more."""
    cache = ByteCache[int, str](most=100, largest=60)
    cache.put(1, "a", 50)
    cache.put(1, "b", 20)
    assert (cache.get(1), cache.bytes) == ("b", 20)
    cache.put(1, "c", 61)
    assert (cache.get(1), cache.bytes) == (None, 0)


def test_a_cache_that_overflows_says_so():
    """Until it is cleared: what is in it has little in common."""
    cache = ByteCache[int, str](most=100, largest=60)
    seen = []
    for key in (1, 2):
        cache.put(key, "value", 60)
        seen.append(cache.is_overflowing)
    cache.clear()
    assert seen == [False, True]
    assert (len(cache), cache.bytes, cache.is_overflowing) == (0, 0, False)


def test_long_arguments_are_not_kept():
    """A function is asked again about what is long, and once about what is short."""
    asked = list[str]()

    @cache_short(2, 5, len)
    def reverse(text: str) -> str:
        asked.append(text)
        return text[::-1]

    assert [reverse(text) for text in ("short", "short", "longer", "longer")] == ["trohs"] * 2 + [
        "regnol"
    ] * 2
    assert asked == ["short", "longer", "longer"]
