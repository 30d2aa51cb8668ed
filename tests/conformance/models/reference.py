"""reference.py: two model families in numpy, float64, from their papers and
published configurations: GPT-OSS (with MXFP4 experts) and DeepSeek V2 (YaRN by
DeepSeek's own convention).

For what the transformers library does not compute, or computes otherwise.  No
cache, no batching: all positions of one sequence at once.  Needs numpy.
"""
import math

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def yarn(c, dim):
    """cos and sin by position and pair, unscaled, and YaRN's own magnitude."""
    s = c["rope_scaling"]
    base, factor, old = c["rope_theta"], s["factor"], s["original_max_position_embeddings"]
    index = np.arange(0, dim, 2) / dim
    slow, fast = 1 / (factor * base**index), 1 / base**index

    def at(rotations):
        return dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = at(s["beta_fast"]), at(s["beta_slow"])
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    inverse = slow * ramp + fast * (1 - ramp)
    return inverse, lambda m: 0.1 * m * math.log(factor) + 1


def rotate_half(x, angle, size):
    """x [n, heads, dim], pairs (i, i + dim/2)."""
    cos, sin = np.cos(angle)[:, None] * size, np.sin(angle)[:, None] * size
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def rotate_pairs(x, angle):
    """x [n, heads, dim], pairs (2i, 2i + 1)."""
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return out


def attend(q, k, v, scale, window=0, sink=None):
    """q [n, heads, d], k and v [n, kv heads, ...]: causal, within the window."""
    n, heads = q.shape[:2]
    group, position = heads // k.shape[1], np.arange(n)
    hidden = position[None, :] > position[:, None]
    if window:
        hidden = hidden | (position[:, None] - position[None, :] >= window)
    out = np.empty((n, heads, v.shape[-1]))
    for h in range(heads):
        x = scale * q[:, h] @ k[:, h // group].T
        x[hidden] = -np.inf
        if sink is not None:
            x = np.concatenate([x, np.full((n, 1), sink[h])], 1)
        out[:, h] = softmax(x)[:, :n] @ v[:, h // group]
    return out


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(blocks, scales):
    """blocks (experts, out, in/32, 16), scales (experts, out, in/32) -> (experts, in, out)."""
    pairs = np.stack([FP4[blocks & 15], FP4[blocks >> 4]], -1)
    value = pairs.reshape(*blocks.shape[:3], 32) * 2.0 ** (scales.astype(np.int64) - 127)[..., None]
    return value.reshape(*blocks.shape[:2], -1).transpose(0, 2, 1)


def gpt_oss(c, w, ids):
    heads, kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    n, limit = len(ids), c["swiglu_limit"]
    inverse, magnitude = yarn(c, d)
    angle = np.arange(n)[:, None] * inverse

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def experts(name):
        if name in w:
            return w[name]
        return mxfp4(w[name + "_blocks"], w[name + "_scales"])

    x = w["model.embed_tokens.weight"][ids]
    for i, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{i}."
        y = rms_norm(x, w[at + "input_layernorm.weight"], c["rms_norm_eps"])
        q, k, v = (linear(y, at + f"self_attn.{p}_proj").reshape(n, -1, d) for p in "qkv")
        q, k = (rotate_half(z, angle, magnitude(1)) for z in (q, k))
        window = c["sliding_window"] if kind == "sliding_attention" else 0
        y = attend(q, k, v, d**-0.5, window, w[at + "self_attn.sinks"])
        x = x + linear(y.reshape(n, heads * d), at + "self_attn.o_proj")
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        score = linear(y, at + "mlp.router")
        up = experts(at + "mlp.experts.gate_up_proj")
        down = experts(at + "mlp.experts.down_proj")
        for t in range(n):
            best = np.argsort(-score[t], kind="stable")[: c["num_experts_per_tok"]]
            for e, share in zip(best, softmax(score[t, best])):
                z = y[t] @ up[e] + w[at + "mlp.experts.gate_up_proj_bias"][e]
                g, u = np.minimum(z[0::2], limit), np.clip(z[1::2], -limit, limit)
                z = (u + 1) * g / (1 + np.exp(-1.702 * g))
                x[t] += share * (z @ down[e] + w[at + "mlp.experts.down_proj_bias"][e])
    x = rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])
    return x @ w["lm_head.weight"].T


def deepseek_v2(c, w, ids):
    n, heads, eps = len(ids), c["num_attention_heads"], c["rms_norm_eps"]
    nope, rope, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    inverse, magnitude = yarn(c, rope)
    s = c["rope_scaling"]
    size = magnitude(s["mscale"]) / magnitude(s["mscale_all_dim"])
    scale = (nope + rope) ** -0.5 * magnitude(s["mscale_all_dim"]) ** 2
    angle = np.arange(n)[:, None] * inverse

    def mlp(x, at):
        gate, up = x @ w[at + "gate_proj.weight"].T, x @ w[at + "up_proj.weight"].T
        return silu(gate) * up @ w[at + "down_proj.weight"].T

    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = rms_norm(x, w[at + "input_layernorm.weight"], eps)
        q = (y @ w[at + "self_attn.q_proj.weight"].T).reshape(n, heads, nope + rope)
        kv = y @ w[at + "self_attn.kv_a_proj_with_mqa.weight"].T
        latent = rms_norm(kv[:, :rank], w[at + "self_attn.kv_a_layernorm.weight"], eps)
        kv_b = (latent @ w[at + "self_attn.kv_b_proj.weight"].T).reshape(n, heads, -1)
        shared = rotate_pairs(kv[:, None, rank:], angle) * size
        k = np.concatenate([kv_b[..., :nope], np.broadcast_to(shared, (n, heads, rope))], -1)
        q = np.concatenate([q[..., :nope], rotate_pairs(q[..., nope:], angle) * size], -1)
        y = attend(q, k, kv_b[..., nope:], scale)
        x = x + y.reshape(n, -1) @ w[at + "self_attn.o_proj.weight"].T
        y = rms_norm(x, w[at + "post_attention_layernorm.weight"], eps)
        if i < c["first_k_dense_replace"]:
            x = x + mlp(y, at + "mlp.")
            continue
        score = softmax(y @ w[at + "mlp.gate.weight"].T)
        x = x + mlp(y, at + "mlp.shared_experts.")
        for t in range(n):
            best = np.argsort(-score[t], kind="stable")[: c["num_experts_per_tok"]]
            for e in best:
                share = score[t, e] * c["routed_scaling_factor"]
                x[t] += share * mlp(y[t], at + f"mlp.experts.{e}.")
    x = rms_norm(x, w["model.norm.weight"], eps)
    return x @ w["lm_head.weight"].T


def logits(config, weights, ids):
    """[len(ids), vocab], float64."""
    families = {"gpt_oss": gpt_oss, "deepseek_v2": deepseek_v2}
    return families[config["model_type"]](config, weights, np.array(ids))
