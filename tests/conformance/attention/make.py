#!/usr/bin/env python3
"""make.py: the expected results of attention cases, in float64 from the operator's definition.

  make.py [--check] CASE.json...

Reads each case (attributes, inputs as shape and fill: README.md), evaluates the
paged-attention operator as it is defined, one query head and one key at a time,
and writes the tensors of `expect` beside it as little-endian float32.  --check
compares with the files that are there instead: every value within 1e-6 of
the larger of 1 and its magnitude, stored codes and rows exactly.

Run by hand, for a new case; needs numpy (made and checked with 1.24.2).  It
shares no code with the C and CUDA implementations: that is its worth.
"""
import json
import math
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from fill import fill  # noqa: E402


# ---------------------------------------------------------------- number formats


def round_to(x, dtype):
    """x rounded to nearest even in the format, as float64."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float64)
    if dtype == "float32":
        return x.astype(np.float32).astype(np.float64)
    # bfloat16: 8 bits of significand; exact in float64 arithmetic.
    m, e = np.frexp(x)
    return np.ldexp(np.rint(m * 256) / 256, e)


def e4m3_value(code):
    code = code.astype(np.int64)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exp, man = code >> 3 & 15, code & 7
    return sign * np.where(exp == 0, man * 2.0**-9, (8 + man) * 2.0 ** (exp - 10.0))


E4M3 = e4m3_value(np.arange(127))  # 0 ... 448, by code


def e4m3_code(x):
    """Nearest code, ties to the even one."""
    a = np.minimum(np.abs(x), 448.0)
    hi = np.searchsorted(E4M3, a)
    lo = np.maximum(hi - 1, 0)
    d_lo, d_hi = a - E4M3[lo], E4M3[hi] - a
    code = np.where((d_hi < d_lo) | ((d_hi == d_lo) & (hi % 2 == 0)), hi, lo)
    return (code + np.where(np.signbit(x), 128, 0)).astype(np.uint8)


class Cache:
    """One paged cache: stores rows, reads values."""

    def __init__(self, codes, dtype, scale, stored):
        self.dtype, self.stored = dtype, stored
        self.slab = codes
        self.scale = scale  # broadcasts over (kv_heads, width), or None

    def store(self, slot, rows):
        block, at = divmod(slot, self.slab.shape[1])
        if self.stored == "int8":
            self.slab[block, at] = np.clip(np.rint(rows / self.scale), -128, 127)
        elif self.stored == "float8e4m3fn":
            self.slab[block, at] = e4m3_code(rows / self.scale)
        else:
            self.slab[block, at] = round_to(rows, self.stored)

    def read(self, block, at):
        rows = self.slab[block, at]
        if self.stored == "float8e4m3fn":
            return e4m3_value(rows) * self.scale
        return rows * self.scale if self.stored == "int8" else rows


# ---------------------------------------------------------------- the operator


def norm(x, weight, epsilon):
    return x * weight / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def rotate(x, position, a, cos, sin):
    half, at = cos.shape[1], a["rotary_offset"]
    part = x[..., at : at + 2 * half]
    c, s = cos[position], sin[position]
    if a["rotary_interleaved"]:
        first, second = part[..., 0::2], part[..., 1::2]
    else:
        first, second = part[..., :half], part[..., half:]
    rotated = np.empty_like(part)
    to_first, to_second = first * c - second * s, first * s + second * c
    if a["rotary_interleaved"]:
        rotated[..., 0::2], rotated[..., 1::2] = to_first, to_second
    else:
        rotated[..., :half], rotated[..., half:] = to_first, to_second
    out = x.copy()
    out[..., at : at + 2 * half] = rotated
    return out


def split_inputs(case, x):
    """q [n, heads, d], k and v [n, kv heads, d] (v None where latent)."""
    a, d = case["attrs"], case["head_size"]
    n, heads, kv = x["query"].shape[0], a["num_heads"], a["kv_num_heads"]
    if "key" in x:
        q = x["query"].reshape(n, heads, d)
        k = x["key"].reshape(n, kv, d)
        v = x["value"].reshape(n, kv, d) if "value" in x else None
        return q, k, v
    packed = x["query"].reshape(n, heads + 2 * kv, d)
    return packed[:, :heads], packed[:, heads : heads + kv], packed[:, heads + kv :]


def load(case):
    x = {name: fill(case["key"] + "/" + name, spec) for name, spec in case["inputs"].items()}
    for plant in case["plants"]:
        d = case["head_size"]
        token, head = plant["query"]
        row = x["query"][token, head * d : (head + 1) * d]
        into, at = x[plant["into"]], plant["at"]
        if plant["into"] == "key":
            into[at[0], at[1] * d : (at[1] + 1) * d] = row
        else:
            into[tuple(at)] = row
    return x


def evaluate(case):
    a, x = case["attrs"], load(case)
    q, k, v = split_inputs(case, x)
    cum, past, table = (x[n] for n in ("cumulative_sequence_length", "past_seqlens", "block_table"))
    latent, d = a["kv_cache_layout"] == "LATENT", case["head_size"]
    width = (a["v_head_size"] or d) if latent else d
    scale = a["scale"] or 1 / math.sqrt(d)
    group, window = a["num_heads"] // a["kv_num_heads"], a["local_window_size"]
    caches = [
        Cache(x[name], case["dtype"], np.squeeze(x[s], 1) if s in x and x[s].ndim == 3 else x.get(s),
              case["cache_dtype"])
        for name, s in (("key_cache", "k_scale"), ("value_cache", "v_scale")) if name in x
    ]
    block_size = x["key_cache"].shape[1]

    def mapped(b, position):
        column = position // block_size
        return table[b, column] if column < table.shape[1] else -1

    rows = [(b, t) for b in range(len(past)) for t in range(cum[b], cum[b + 1])]
    position = {t: int(x["query_positions"][t]) if "query_positions" in x
                else int(past[b] + t - cum[b]) for b, t in rows}
    queries = {}
    for b, t in rows:
        q_row, k_row = q[t], k[t]
        if "q_norm_weight" in x:
            q_row = norm(q_row, x["q_norm_weight"], a["qk_norm_epsilon"])
            k_row = norm(k_row, x["k_norm_weight"], a["qk_norm_epsilon"])
        if "cos_cache" in x:
            q_row = rotate(q_row, position[t], a, x["cos_cache"], x["sin_cache"])
            k_row = rotate(k_row, position[t], a, x["cos_cache"], x["sin_cache"])
        queries[t] = q_row
        legacy = int(past[b] + t - cum[b])
        if "slot_mapping" in x:
            slot = int(x["slot_mapping"][t])
        else:
            block = mapped(b, legacy)
            slot = block * block_size + legacy % block_size if block >= 0 else -1
        if slot >= 0:
            caches[0].store(slot, k_row)
            if not latent:
                caches[1].store(slot, v[t])

    n = q.shape[0]
    output = np.zeros((n, a["num_heads"], width))
    qk = None
    if "output_qk" in case["expect"]:
        qk = np.full(case["expect"]["output_qk"]["shape"], -np.inf if a["qk_output"] == 1 else 0.0)
    for b, t in rows:
        p, kv_len = position[t], int(past[b] + cum[b + 1] - cum[b])
        keys = [i for i in range(min(p + 1, kv_len))
                if (window <= 0 or i > p - window) and mapped(b, i) >= 0]
        if not keys:
            continue
        at = [(mapped(b, i), i % block_size) for i in keys]
        key = np.stack([caches[0].read(*w) for w in at])          # [keys, kv heads, d]
        value = key[..., :width] if latent else np.stack([caches[1].read(*w) for w in at])
        for h in range(a["num_heads"]):
            s = scale * (key[:, h // group] @ queries[t][h])
            if "attention_bias" in x:
                bias = x["attention_bias"]
                s = s + bias[b % bias.shape[0], h % bias.shape[1], t - cum[b], keys]
            if a["softcap"]:
                s = a["softcap"] * np.tanh(s / a["softcap"])
            top = s.max()
            if "head_sink" in x:
                top = max(top, x["head_sink"][h])
            e = np.exp(s - top)
            total = e.sum() + (math.exp(x["head_sink"][h] - top) if "head_sink" in x else 0.0)
            output[t, h] = e @ value[:, h // group] / total
            if qk is not None:
                qk[h, t, keys] = s if a["qk_output"] == 1 else e / total
    made = {"output": output.reshape(n, a["num_heads"] * width), "key_cache": caches[0].slab, "output_qk": qk}
    if not latent:
        made["value_cache"] = caches[1].slab
    return made


def differs(got, want):
    """What is wrong with got, or None."""
    with np.errstate(invalid="ignore"):
        close = np.abs(got - want) <= 1e-6 * np.maximum(1, np.abs(want))
    bad = ~(close | (got == want))
    return f"{bad.sum()} of {bad.size} values, first at {np.argwhere(bad)[0]}" if bad.any() else None


def main():
    check = "--check" in sys.argv[1:]
    passed = failed = 0
    for path in map(pathlib.Path, [w for w in sys.argv[1:] if w != "--check"]):
        case = json.loads(path.read_text())
        made = evaluate(case)
        faults = []
        for name, spec in case["expect"].items():
            got, file = made[name].astype("<f4").reshape(spec["shape"]), path.parent / spec["file"]
            if not check:
                got.tofile(file)
                continue
            fault = differs(got, np.fromfile(file, "<f4").reshape(spec["shape"]))
            if fault:
                faults.append(f"{name}: {fault}")
        passed, failed = passed + (not faults), failed + bool(faults)
        print(f"{case['id']}: {'; '.join(faults) or 'ok'}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
