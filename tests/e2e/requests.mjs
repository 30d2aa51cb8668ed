/* requests.mjs: the requests that several end-to-end tests send, and what they
 * compare.  A request is greedy and ignores EOS unless told otherwise. */
import fs from 'node:fs';
import path from 'node:path';
import assert from 'node:assert/strict';
import { TALES, postJson } from './daemon.mjs';

export const GOLDEN = JSON.parse(fs.readFileSync(path.join(TALES, 'golden.json'), 'utf8'));

/* POST /v1/completions; the parsed body of a 200, or an assertion. */
export async function complete(daemon, body) {
    const response = await postJson(`${daemon.url}/v1/completions`, {
        temperature: 0, ignore_eos: true, return_token_ids: true, ...body,
    });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    return JSON.parse(text);
}

/* The ids of the only choice. */
export async function completeIds(daemon, body) {
    return (await complete(daemon, body)).choices[0].token_ids;
}

/* What must not depend on how a request was computed, one entry a choice. */
export async function answers(daemon, body) {
    const reply = await complete(daemon, { logprobs: 0, ...body });
    return Object.assign(reply.choices.map((c) => ({ ids: c.token_ids, finish: c.finish_reason,
        logprobs: c.logprobs.token_logprobs })), { cached: cachedTokens(reply) });
}

/* Same ids and endings, log probabilities within 1e-3. */
export function assertSame(got, want, what = '') {
    assert.equal(got.length, want.length, what);
    got.forEach((g, i) => {
        assert.deepEqual([g.ids, g.finish], [want[i].ids, want[i].finish], what);
        assert.equal(g.logprobs.length, want[i].logprobs.length, what);
        g.logprobs.forEach((v, k) => assert.ok(Math.abs(v - want[i].logprobs[k]) < 1e-3,
            `${what} token ${k}: ${v}, expected ${want[i].logprobs[k]}`));
    });
}

export function cachedTokens(reply) {
    return reply.usage.prompt_tokens_details.cached_tokens;
}

/* 20 requests on a daemon whose pool is so small that some are preempted: long
 * enough that admission cannot foresee the end; what follows the golden tokens
 * must be the same for every request of a prompt. */
export async function goldenThroughPreemptions(daemon) {
    const jobs = Array.from({ length: 20 }, (_, i) => GOLDEN[i % GOLDEN.length]);
    const got = await Promise.all(jobs.map((g) => completeIds(
        daemon, { prompt: g.ids, max_tokens: 200 })));
    got.forEach((ids, i) => {
        assert.deepEqual(ids.slice(0, 64), jobs[i].greedy, `request ${i}`);
        assert.deepEqual(ids, got[i % GOLDEN.length], `request ${i}`);
    });
    assert.ok(await metric(daemon, 'vllm:num_preemptions_total') > 0);
}

/* Deterministic prompt of n ids, different for every seed. */
export function promptOf(n, seed = 1) {
    const ids = [];
    let state = BigInt(seed) * 0x9E3779B97F4A7C15n & 0xFFFFFFFFFFFFFFFFn;
    for (let i = 0; i < n; i++) {
        state = state * 6364136223846793005n + 1442695040888963407n & 0xFFFFFFFFFFFFFFFFn;
        ids.push(5 + Number((state >> 33n) % 4000n));
    }
    return ids;
}

/* Text of prompt tokens does not matter to these tests: real prose keeps the
 * choices' margins wide.  The golden prompt and its continuation, n ids long. */
export function proseOf(n, index = 0) {
    const long = [];
    for (let i = 0; long.length < n; i++) {
        const g = GOLDEN[(index + i) % GOLDEN.length];
        long.push(...g.ids, ...g.greedy);
    }
    return long.slice(0, n);
}

/* One sample of a metric: without labels other than the standing ones, or the one
 * with a label of this value. */
export async function metric(daemon, name, label = '') {
    const text = await (await fetch(`${daemon.url}/metrics`)).text();
    const line = text.split('\n').find((l) => (l.startsWith(`${name}{`) || l.startsWith(`${name} `))
        && (label === '' || l.includes(`="${label}"`)));
    assert.ok(line, `no metric ${name} ${label}`);
    return Number(line.slice(line.lastIndexOf(' ') + 1));
}
