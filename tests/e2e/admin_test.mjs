/* admin_test.mjs: what operators see and may do: why a request missed the prefix
 * cache, pins, the block map, recorded steps, a reset that waits. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, postJson } from './daemon.mjs';
import { complete, cachedTokens, promptOf } from './requests.mjs';

async function withDaemon(args, body) {
    const daemon = await start({ args: ['--dtype', 'float32', ...args] });
    try {
        await body(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null }, daemon.log());
    }
}

/* ------------------------------------------------------ reasons of misses */

const reasons = (miss = {}) =>
    ({ never_seen: 0, evicted: 0, salt: 0, granularity: 0, window: 0, ...miss });

/* The `cache` object of a reply, whose headers must say the same. */
async function cacheOf(daemon, body) {
    const response = await postJson(`${daemon.url}/v1/completions`,
        { max_tokens: 1, temperature: 0, cache: true, ...body });
    const reply = await response.json();
    assert.equal(response.status, 200, JSON.stringify(reply));
    const { cache } = reply, h = response.headers;
    assert.equal(Number(h.get('x-cache-query-tokens')), cache.query_tokens);
    assert.equal(Number(h.get('x-cache-hit-tokens')), cache.hit_tokens);
    assert.equal(h.get('x-cache-miss-tokens'),
        Object.entries(cache.miss_tokens).map(([k, v]) => `${k}=${v}`).join(', '));
    assert.equal(cachedTokens(reply), cache.hit_tokens);
    assert.equal(cache.query_tokens, cache.hit_tokens
        + Object.values(cache.miss_tokens).reduce((a, b) => a + b));
    return cache;
}

test('a reply says why it missed the cache', () => withDaemon(
    ['--num-gpu-blocks-override', '40'], async (daemon) => {
        const prompt = promptOf(100);
        const is = async (body, hit_tokens, miss) => assert.deepEqual(await cacheOf(daemon, body),
            { query_tokens: 100, hit_tokens, miss_tokens: reasons(miss) });
        await is({ prompt }, 0, { never_seen: 96, granularity: 4 });
        await is({ prompt }, 96, { granularity: 4 });
        await is({ prompt, cache_salt: 'other' }, 0, { salt: 96, granularity: 4 });
        for (let i = 0; i < 6; i++) await complete(daemon, { prompt: promptOf(320, 10 + i), max_tokens: 1 });
        await is({ prompt }, 0, { evicted: 96, granularity: 4 });
        /* Two prompts: sums.  Prompt scores: nothing was looked up. */
        assert.deepEqual(await cacheOf(daemon, { prompt: [prompt, promptOf(33, 99)] }),
            { query_tokens: 133, hit_tokens: 96, miss_tokens: reasons({ never_seen: 32, granularity: 5 }) });
        assert.deepEqual(await cacheOf(daemon, { prompt, echo: true, logprobs: 1 }),
            { query_tokens: 0, hit_tokens: 0, miss_tokens: reasons() });
        const plain = await complete(daemon, { prompt, max_tokens: 1 });
        assert.equal('cache' in plain, false);
        await idle(daemon);
    }));

test('a stream ends with the cache object where it was asked for', () => withDaemon([], async (daemon) => {
    const events = async (body) => {
        const response = await postJson(`${daemon.url}/v1/completions`,
            { prompt: promptOf(40), max_tokens: 3, stream: true, ...body });
        assert.equal(response.headers.get('x-cache-hit-tokens'), null); /* not known yet */
        const text = await response.text();
        assert.match(text, /data: \[DONE\]\n\n$/);
        return [...text.matchAll(/^data: (\{.*\})$/gm)].map((m) => JSON.parse(m[1]));
    };
    const cold = { query_tokens: 40, hit_tokens: 0, miss_tokens: reasons({ never_seen: 32, granularity: 8 }) };
    const warm = { query_tokens: 40, hit_tokens: 32, miss_tokens: reasons({ granularity: 8 }) };
    let all = await events({ cache: true });
    let last = all.pop();
    assert.deepEqual(last.choices, []);
    assert.deepEqual(last.cache, cold);
    assert.equal('usage' in last, false);
    for (const e of all) assert.equal('cache' in e, false);
    last = (await events({ cache: true, stream_options: { include_usage: true } })).pop();
    assert.deepEqual(last.cache, warm);
    assert.equal(last.usage.prompt_tokens_details.cached_tokens, 32);
    all = await events({});
    for (const e of all) assert.equal('cache' in e, false);
    assert.equal(all.at(-1).choices.length, 1);
    await idle(daemon);
}));
