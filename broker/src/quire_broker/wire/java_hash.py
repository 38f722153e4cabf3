"""Java's String.hashCode, by which Java producers choose the partition of a key."""


def java_hash(key: str) -> int:
    """Return the hash without its sign."""
    state = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        state = (31 * state + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return state & 0x7FFFFFFF
