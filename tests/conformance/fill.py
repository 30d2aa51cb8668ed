"""fill.py: the tensors of conformance cases, which are not stored but filled: every
element from one word of splitmix64 seeded by the FNV-1a-64 of the tensor's key.
The rule is attention/README.md's; tests/support/fixture.c is the same in C.
Needs numpy.
"""
import math

import numpy as np

MASK = (1 << 64) - 1


def words(key, n):
    h = 0xCBF29CE484222325
    for byte in key.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fill(key, spec):
    """The tensor: float64 values, integers, or 8-bit codes."""
    n = math.prod(spec["shape"])
    if spec.get("fill") == "values":
        return np.array(spec["values"]).reshape(spec["shape"])
    w = words(key, n)
    if spec.get("fill") == "e4m3":
        u = np.uint64
        code = (w >> u(63)) << u(7) | (u(5) + (w >> u(61) & u(3))) << u(3) | (w >> u(58) & u(7))
        return code.astype(np.uint8).reshape(spec["shape"])
    if spec.get("fill") == "bytes":
        byte = spec["base"] + (w >> np.uint64(56) & np.uint64(spec["mask"])).astype(np.int64)
        return byte.astype(np.uint8).reshape(spec["shape"])
    top = (w >> np.uint64(56)).astype(np.uint8).view(np.int8).astype(np.int64)
    value = spec["offset"] + (top >> spec["shift"]) * 2.0 ** spec["exp"]
    return value.reshape(spec["shape"])
