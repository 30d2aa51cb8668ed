/* tiny.mjs: model directories with seeded random weights, and the same model
 * computed in plain JavaScript, so that a test has an answer that owes nothing to
 * the daemon: no cache, no blocks, no window ring, only masks.
 *
 * A Mistral-shaped decoder of a few small layers over the bundled tokenizer.
 * `windows` gives each layer's sliding window, 0 for full attention; a model has one.  Queries and
 * keys are large, so that attention is sharp and a lost key changes tokens. */
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { TALES } from './daemon.mjs';

const HIDDEN = 64, HEADS = 4, KV_HEADS = 2, DIM = 16, INNER = 96, VOCAB = 4096, EPS = 1e-5, THETA = 10000;

/* Uniform in [-1, 1), the same for the same seed everywhere. */
function generator(seed) {
    let s = seed >>> 0 || 1;
    return () => {
        s ^= s << 13; s >>>= 0;
        s ^= s >>> 17;
        s ^= s << 5; s >>>= 0;
        return s / 2 ** 31 - 1;
    };
}

function randomWeights(seed, layers) {
    const next = generator(seed), w = {};
    const matrix = (name, rows, cols, gain) => {
        const a = new Float32Array(rows * cols), scale = gain * Math.sqrt(3 / cols);
        for (let i = 0; i < a.length; i++) a[i] = next() * scale;
        w[name] = { shape: [rows, cols], data: a };
    };
    const ones = (name) => { w[name] = { shape: [HIDDEN], data: new Float32Array(HIDDEN).fill(1) }; };
    matrix('model.embed_tokens.weight', VOCAB, HIDDEN, 8);
    for (let i = 0; i < layers; i++) {
        const p = `model.layers.${i}.`;
        ones(p + 'input_layernorm.weight');
        ones(p + 'post_attention_layernorm.weight');
        matrix(p + 'self_attn.q_proj.weight', HEADS * DIM, HIDDEN, 1.6);
        matrix(p + 'self_attn.k_proj.weight', KV_HEADS * DIM, HIDDEN, 1.6);
        matrix(p + 'self_attn.v_proj.weight', KV_HEADS * DIM, HIDDEN, 1);
        matrix(p + 'self_attn.o_proj.weight', HIDDEN, HEADS * DIM, 3);
        matrix(p + 'mlp.gate_proj.weight', INNER, HIDDEN, 1);
        matrix(p + 'mlp.up_proj.weight', INNER, HIDDEN, 1);
        matrix(p + 'mlp.down_proj.weight', HIDDEN, INNER, 1);
    }
    ones('model.norm.weight');
    matrix('lm_head.weight', VOCAB, HIDDEN, 8);
    return w;
}

function writeSafetensors(file, weights) {
    const header = {};
    let at = 0;
    for (const [name, { shape, data }] of Object.entries(weights)) {
        header[name] = { dtype: 'F32', shape, data_offsets: [at, at += data.byteLength] };
    }
    let text = JSON.stringify(header);
    text += ' '.repeat((8 - text.length % 8) % 8);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    fs.writeFileSync(file, Buffer.concat([length, Buffer.from(text),
        ...Object.values(weights).map(({ data }) => Buffer.from(data.buffer))]));
}

/* A model directory under the system's temporary one; remove() deletes it. */
export function makeModel({ windows = [0, 0], seed = 1, positions = 2048 } = {}) {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'quire-tiny-'));
    const weights = randomWeights(seed, windows.length);
    const sliding = windows.find((w) => w > 0);
    if (windows.some((w) => w > 0 && w !== sliding)) throw new Error('one window a model');
    const config = {
        architectures: ['MistralForCausalLM'], model_type: 'mistral', vocab_size: VOCAB, hidden_size: HIDDEN,
        intermediate_size: INNER, num_hidden_layers: windows.length, num_attention_heads: HEADS,
        num_key_value_heads: KV_HEADS, head_dim: DIM, hidden_act: 'silu', max_position_embeddings: positions,
        rms_norm_eps: EPS, rope_theta: THETA, tie_word_embeddings: false, bos_token_id: 0, eos_token_id: 1,
        torch_dtype: 'float32', sliding_window: sliding ?? null,
        ...(sliding ? { layer_types: windows.map((w) => w > 0 ? 'sliding_attention' : 'full_attention') } : {}),
    };
    fs.writeFileSync(path.join(dir, 'config.json'), JSON.stringify(config));
    writeSafetensors(path.join(dir, 'model.safetensors'), weights);
    for (const name of ['tokenizer.json', 'tokenizer_config.json'])
        fs.copyFileSync(path.join(TALES, name), path.join(dir, name));
    return { dir, windows, weights, remove: () => fs.rmSync(dir, { recursive: true }) };
}

/* ------------------------------------------------------------ the reference */

function multiply(w, x) {
    const [rows, cols] = w.shape, y = new Float64Array(rows);
    for (let i = 0; i < rows; i++) {
        let s = 0;
        for (let j = 0, at = i * cols; j < cols; j++) s += w.data[at + j] * x[j];
        y[i] = s;
    }
    return y;
}

function norm(x) {
    let s = 0;
    for (const v of x) s += v * v;
    const r = 1 / Math.sqrt(s / x.length + EPS);
    return x.map((v) => v * r); /* the weights are ones */
}

function rope(x, heads, position) {
    for (let h = 0; h < heads; h++)
        for (let i = 0; i < DIM / 2; i++) {
            const angle = position * THETA ** (-2 * i / DIM), c = Math.cos(angle), s = Math.sin(angle);
            const a = h * DIM + i, b = a + DIM / 2, u = x[a], v = x[b];
            x[a] = u * c - v * s;
            x[b] = v * c + u * s;
        }
    return x;
}

/* One sequence, fed token by token; keeps every key and value and masks. */
export class Reference {
    constructor(model) {
        this.model = model;
        this.n = 0;
        this.keys = model.windows.map(() => []);
        this.values = model.windows.map(() => []);
    }

    /* Take a token; the hidden state behind it. */
    feed(id) {
        const { weights: w, windows } = this.model, p = this.n++;
        let x = Float64Array.from(w['model.embed_tokens.weight'].data.subarray(id * HIDDEN, (id + 1) * HIDDEN));
        for (let l = 0; l < windows.length; l++) {
            const at = (name) => w[`model.layers.${l}.${name}.weight`];
            let h = norm(x);
            const q = rope(multiply(at('self_attn.q_proj'), h), HEADS, p);
            this.keys[l].push(rope(multiply(at('self_attn.k_proj'), h), KV_HEADS, p));
            this.values[l].push(multiply(at('self_attn.v_proj'), h));
            const y = multiply(at('self_attn.o_proj'), this.attend(l, q, p));
            x = x.map((v, i) => v + y[i]);
            h = norm(x);
            const gate = multiply(at('mlp.gate_proj'), h), up = multiply(at('mlp.up_proj'), h);
            const z = multiply(at('mlp.down_proj'), gate.map((g, i) => g / (1 + Math.exp(-g)) * up[i]));
            x = x.map((v, i) => v + z[i]);
        }
        this.x = x;
        return x;
    }

    attend(l, q, p) {
        const window = this.model.windows[l], first = window > 0 ? Math.max(0, p - window + 1) : 0;
        const out = new Float64Array(HEADS * DIM);
        for (let h = 0; h < HEADS; h++) {
            const kv = Math.floor(h * KV_HEADS / HEADS) * DIM, scores = [];
            for (let j = first; j <= p; j++) {
                let s = 0;
                for (let i = 0; i < DIM; i++) s += q[h * DIM + i] * this.keys[l][j][kv + i];
                scores.push(s / Math.sqrt(DIM));
            }
            const most = Math.max(...scores);
            let sum = 0;
            const weights = scores.map((s) => { const e = Math.exp(s - most); sum += e; return e; });
            weights.forEach((e, j) => {
                for (let i = 0; i < DIM; i++) out[h * DIM + i] += e / sum * this.values[l][first + j][kv + i];
            });
        }
        return out;
    }

    /* Log probabilities of the next token. */
    logprobs() {
        const z = multiply(this.model.weights['lm_head.weight'], norm(this.x));
        const most = z.reduce((a, b) => Math.max(a, b));
        let sum = 0;
        for (const v of z) sum += Math.exp(v - most);
        return z.map((v) => v - most - Math.log(sum));
    }
}

/* Greedy continuation: ids and their log probabilities; null once the best and the
 * second best token are closer than margin. */
export function greedy(model, prompt, n, margin = 0) {
    const r = new Reference(model), ids = [], logprobs = [];
    for (const id of prompt) r.feed(id);
    for (let i = 0; i < n; i++) {
        const lp = r.logprobs();
        let best = 0;
        lp.forEach((v, id) => { if (v > lp[best]) best = id; });
        let second = -Infinity;
        lp.forEach((v, id) => { if (id !== best && v > second) second = v; });
        if (lp[best] - second < margin) return null;
        ids.push(best);
        logprobs.push(lp[best]);
        if (i + 1 < n) r.feed(best);
    }
    return { ids, logprobs };
}

/* A prompt of n tokens whose greedy continuation is sure at every step, so that
 * rounding cannot flip a token, with that continuation. */
export function surePrompt(model, n, out, makePrompt, seed = 1) {
    for (;; seed++) {
        const prompt = makePrompt(n, seed), want = greedy(model, prompt, out, 0.01);
        if (want !== null) return { prompt, want };
    }
}
