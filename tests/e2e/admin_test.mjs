/* admin_test.mjs: what operators see and may do: why a request missed the prefix
 * cache, pins, the block map, recorded steps, a reset that waits. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, postJson, until } from './daemon.mjs';
import { complete, cachedTokens, metric, promptOf } from './requests.mjs';

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

/* ------------------------------------------------------------------- pins */

const admin = async (daemon, path, body) => {
    const response = await (body === undefined ? fetch(daemon.url + path)
        : postJson(daemon.url + path, body));
    return { status: response.status, ...(await response.json()) };
};
const pinsOf = async (daemon) => (await admin(daemon, '/admin/cache')).pins;
/* Distinct prompts that hand every block out anew. */
async function pressure(daemon, seed) {
    for (let i = 0; i < 8; i++) await complete(daemon, { prompt: promptOf(160, seed + i), max_tokens: 1 });
}

test('a pinned prefix outlives pressure, until unpinned or its time is up', () => withDaemon(
    ['--num-gpu-blocks-override', '40', '--cache-pin-budget', '0.25', '--max-cache-pins', '2'], async (daemon) => {
        const prompt = promptOf(100);
        const cached = async (body) => cachedTokens(await complete(daemon, { max_tokens: 1, ...body }));
        assert.equal((await admin(daemon, '/admin/cache/pin', { prompt })).status, 404); /* nothing cached yet */
        assert.equal(await cached({ prompt }), 0);
        const set = await admin(daemon, '/admin/cache/pin', { prompt, ttl_seconds: 60 });
        assert.equal(set.status, 200, JSON.stringify(set));
        assert.deepEqual([set.pin.tokens, set.pin.blocks, set.prompt_tokens, set.pinned_blocks, set.budget_blocks],
            [96, 6, 100, 6, 10]);
        assert.ok(set.pin.expires_in_seconds > 55 && set.pin.expires_in_seconds <= 60);
        await pressure(daemon, 100);
        assert.equal(await cached({ prompt }), 96);
        assert.deepEqual((await pinsOf(daemon)).list.map((p) => p.id), [set.pin.id]);
        /* Another key domain is another prefix; a full budget is a conflict. */
        assert.equal((await admin(daemon, '/admin/cache/pin', { prompt, cache_salt: 'x' })).status, 404);
        await cached({ prompt: promptOf(100, 2) });
        const full = await admin(daemon, '/admin/cache/pin', { prompt: promptOf(100, 2) });
        assert.equal(full.status, 409);
        assert.match(full.error.message, /6 KV blocks to pin and 6 pinned: the budget is 10/);
        /* A reset keeps what is pinned. */
        const reset = await admin(daemon, '/admin/cache/reset', {});
        assert.deepEqual([reset.status, reset.done, reset.kept_blocks, reset.free_blocks], [200, true, 6, 34]);
        assert.equal(await cached({ prompt }), 96);
        assert.deepEqual(await admin(daemon, '/admin/cache/unpin', { pin: set.pin.id }),
            { status: 200, unpinned: 1, pinned_blocks: 0, budget_blocks: 10 });
        assert.equal((await admin(daemon, '/admin/cache/unpin', { pin: set.pin.id })).status, 404);
        await pressure(daemon, 200);
        assert.equal(await cached({ prompt }), 0);
        /* A second one to live: its name is new, and it goes by itself. */
        const brief = await admin(daemon, '/admin/cache/pin', { prompt, ttl_seconds: 1 });
        assert.equal(brief.pin.id, 'pin-2');
        assert.equal((await pinsOf(daemon)).blocks, 6);
        await until(async () => await metric(daemon, 'quire_kv_blocks', 'held') === 0, 9000); /* nothing wakes the engine */
        assert.deepEqual((await pinsOf(daemon)).list, []);
        await pressure(daemon, 300);
        assert.equal(await cached({ prompt }), 0);
        await idle(daemon);
    }));

test('pins by text and by a live request; all at once removed', () => withDaemon(
    ['--cache-pin-budget', '0.1'], async (daemon) => {
        const text = 'Once upon a time there was a king who had a daughter, and she was the fairest of all in the land.';
        await complete(daemon, { prompt: text, max_tokens: 1 });
        const byText = await admin(daemon, '/admin/cache/pin', { prompt: text });
        assert.equal(byText.status, 200, JSON.stringify(byText));
        assert.ok(byText.pin.tokens >= 16 && byText.pin.tokens % 16 === 0);
        const live = new AbortController();
        const stream = await postJson(`${daemon.url}/v1/completions`,
            { prompt: promptOf(64, 5), max_tokens: 1500, ignore_eos: true, stream: true },
            { signal: live.signal, headers: { 'x-request-id': 'the-live-one' } });
        await stream.body.getReader().read();
        const byId = await admin(daemon, '/admin/cache/pin', { request_id: 'the-live-one' });
        live.abort();
        assert.equal(byId.status, 200, JSON.stringify(byId));
        assert.equal(byId.pin.tokens, 64);
        assert.deepEqual(await admin(daemon, '/admin/cache/unpin', { pin: 'all' }),
            { status: 200, unpinned: 2, pinned_blocks: 0, budget_blocks: byId.budget_blocks });
        await idle(daemon);
    }));

test('wrong pins are refused by the field', () => withDaemon(['--cache-pin-budget', '0.1'], async (daemon) => {
    for (const [body, param] of [
        [{}, 'prompt'], [{ prompt: ['a', 'b'] }, 'prompt'], [{ prompt: 'a', ttl_seconds: 0 }, 'ttl_seconds'],
        [{ prompt: 'a', ttl_seconds: 'x' }, 'ttl_seconds'], [{ prompt: 'a', ttl_seconds: 1e9 }, 'ttl_seconds'],
        [{ prompt: [-1] }, 'prompt'], [{ prompt: 'a', cache_salt: '' }, 'cache_salt'],
        [{ request_id: 7 }, 'request_id'], [{ request_id: 'x', prompt: 'a' }, 'request_id'],
        [{ request_id: '' }, 'request_id']]) {
        const r = await admin(daemon, '/admin/cache/pin', body);
        assert.equal(r.status, 400, JSON.stringify([body, r]));
        assert.ok(r.error.param.startsWith(param), JSON.stringify([body, r]));
    }
    assert.equal((await admin(daemon, '/admin/cache/pin', { request_id: 'gone' })).status, 404);
    for (const body of [{}, { pin: 'pin-' }, { pin: 'pin-0' }, { pin: 1 }, { pin: 'pin-1x' }]) {
        const r = await admin(daemon, '/admin/cache/unpin', body);
        assert.equal(r.status, 400, JSON.stringify([body, r]));
        assert.equal(r.error.param, 'pin');
    }
    for (const text of ['', '{', 'null', '[]']) {
        assert.equal((await admin(daemon, '/admin/cache/pin', text)).status, 400, text);
        assert.equal((await admin(daemon, '/admin/cache/unpin', text)).status, 400, text);
    }
    await idle(daemon);
}));

test('without a budget pins are off', () => withDaemon([], async (daemon) => {
    await complete(daemon, { prompt: promptOf(40), max_tokens: 1 });
    const r = await admin(daemon, '/admin/cache/pin', { prompt: promptOf(40) });
    assert.equal(r.status, 409);
    assert.match(r.error.message, /--cache-pin-budget/);
    await idle(daemon);
}));

test('what pins may hold, requests may not count on', async () => {
    const args = (share) => ['--num-gpu-blocks-override', '64', '--cache-pin-budget', share, '--max-model-len', '512'];
    await withDaemon(args('0.5'), async (daemon) => {
        assert.equal((await pinsOf(daemon)).budget_blocks, 32);
        assert.equal((await complete(daemon, { prompt: promptOf(500), max_tokens: 12 })).usage.completion_tokens, 12);
        await idle(daemon);
    });
    for (const [share, pattern, code] of [['0.6', /--max-model-len 512 needs 32 KV blocks, the pool has 26/, 1],
        ['1', /--cache-pin-budget: "1" is not a number of 0 to 0.9/, 2]]) {
        const daemon = await start({ args: args(share), ready: false });
        assert.equal((await daemon.exited).code, code);
        assert.match(daemon.log(), pattern);
    }
});

/* -------------------------------------------------------------- block map */

test('the block map names states and owners, in pages', () => withDaemon(
    ['--num-gpu-blocks-override', '40'], async (daemon) => {
        await complete(daemon, { prompt: promptOf(100), max_tokens: 1 });
        const live = new AbortController();
        const streams = [0, 1].map(() => postJson(`${daemon.url}/v1/completions`,
            { prompt: promptOf(70), max_tokens: 200, ignore_eos: true, stream: true }, { signal: live.signal }));
        await Promise.all(streams.map(async (s) => (await s).body.getReader().read()));
        const requests = (await admin(daemon, '/admin/requests')).requests.map((r) => r.id).sort();
        assert.equal(requests.length, 2);
        const map = await admin(daemon, '/admin/cache/blocks');
        assert.deepEqual([map.total, map.offset, map.next_offset, map.blocks.length], [40, 0, null, 40]);
        assert.deepEqual(map.blocks.map((b) => b.id), Array.from({ length: 40 }, (_, i) => i));
        for (const b of map.blocks) {
            assert.equal(b.refs, b.owners.length, JSON.stringify(b));
            assert.equal(b.state === 'held', b.refs > 0);
            assert.equal(b.evict_order !== null, b.state === 'free' || b.state === 'cached');
            if (b.state === 'cached') assert.match(b.prefix, /^[0-9a-f]{16}$/);
        }
        const shared = map.blocks.filter((b) => b.refs === 2);
        assert.ok(shared.length >= 4); /* 64 of their 70 tokens */
        for (const b of shared) assert.deepEqual(b.owners.map((o) => o.id).sort(), requests);
        const order = map.blocks.filter((b) => b.evict_order !== null).map((b) => b.evict_order).sort((a, b) => a - b);
        assert.deepEqual(order, order.map((_, i) => i));
        const free = map.blocks.filter((b) => b.state === 'free').map((b) => b.evict_order);
        assert.deepEqual(free.sort((a, b) => a - b), free.map((_, i) => i)); /* before what is cached */
        live.abort();
        await idle(daemon);
        const seen = [];
        for (let at = 0; at !== null;) {
            const page = await admin(daemon, `/admin/cache/blocks?offset=${at}&limit=7&state=cached`);
            seen.push(...page.blocks);
            assert.ok(page.next_offset === null || page.next_offset === at + 7);
            at = page.next_offset;
        }
        const { blocks } = await admin(daemon, '/admin/cache');
        assert.equal(seen.length, blocks.cached);
        assert.deepEqual((await admin(daemon, '/admin/cache/blocks?offset=40')).blocks, []);
        for (const [query, param] of [['limit=0', 'limit'], ['limit=10001', 'limit'], ['limit=x', 'limit'],
            ['offset=-1', 'offset'], ['state=none', 'state'], ['page=1', 'page'], ['limit=1&limit=2', 'limit']]) {
            const r = await admin(daemon, `/admin/cache/blocks?${query}`);
            assert.deepEqual([r.status, r.error?.param], [400, param], query);
        }
    }));

/* ------------------------------------------------------------------ steps */

test('the last steps are on record', () => withDaemon(
    ['--max-num-batched-tokens', '32', '--max-num-seqs', '4', '--step-history', '16'], async (daemon) => {
        assert.deepEqual((await admin(daemon, '/admin/steps')).steps, []);
        await complete(daemon, { prompt: promptOf(70), max_tokens: 5 });
        await idle(daemon);
        let { history, steps } = await admin(daemon, '/admin/steps');
        assert.equal(history, 16);
        assert.deepEqual(steps.map((s) => s.tokens), [32, 32, 6, 1, 1, 1, 1]); /* chunks, then tokens */
        assert.deepEqual(steps.map((s) => s.decode_rows), [0, 0, 0, 1, 1, 1, 1]);
        assert.deepEqual(steps.map((s) => s.rows_detail.map((r) => r.past)), [[0], [32], [64], [70], [71], [72], [73]]);
        assert.deepEqual(steps.map((s) => s.rows_detail[0].left), [38, 6, 0, 0, 0, 0, 0]);
        for (const s of steps) {
            assert.equal(s.state, 'done');
            assert.equal(s.rows, 1);
            for (const t of ['plan_us', 'launch_us', 'collect_us', 'commit_us']) assert.ok(s[t] >= 0, t);
        }
        assert.deepEqual(steps.map((s) => s.finished.length), [0, 0, 0, 0, 0, 0, 1]);
        assert.deepEqual(steps.map((s, i) => s.step - steps[0].step), steps.map((_, i) => i));
        await Promise.all([1, 2, 3].map((i) => complete(daemon, { prompt: promptOf(20, i), max_tokens: 30 })));
        await idle(daemon);
        ({ steps } = await admin(daemon, '/admin/steps?last=1000&rows=no'));
        assert.equal(steps.length, 16);
        assert.ok(steps.some((s) => s.decode_rows > 1));
        for (const s of steps) assert.equal('rows_detail' in s, false);
        assert.equal((await admin(daemon, '/admin/steps?last=3')).steps.length, 3);
        for (const [query, param] of [['last=0', 'last'], ['rows=maybe', 'rows'], ['n=3', 'n']]) {
            const r = await admin(daemon, `/admin/steps?${query}`);
            assert.deepEqual([r.status, r.error?.param], [400, param], query);
        }
    }));

/* ------------------------------------------------------------------ reset */

test('a reset may wait until nothing runs', () => withDaemon([], async (daemon) => {
    const body = { prompt: promptOf(64), max_tokens: 300, ignore_eos: true, temperature: 0, stream: true };
    const want = await (await postJson(`${daemon.url}/v1/completions`, body)).text();
    const stream = await postJson(`${daemon.url}/v1/completions`, body);
    const reader = stream.body.getReader();
    let text = Buffer.from((await reader.read()).value).toString();
    const later = await admin(daemon, '/admin/cache/reset?when=idle', {});
    assert.equal(later.status, 202, JSON.stringify(later));
    assert.deepEqual([later.done, later.running], [false, 1]);
    assert.equal((await admin(daemon, '/admin/cache')).reset_waits, true);
    for (let r; !(r = await reader.read()).done;) text += Buffer.from(r.value).toString();
    const texts = (t) => [...t.matchAll(/"text":"((?:[^"\\]|\\.)*)"/g)].map((m) => m[1]).join('');
    assert.equal(texts(text), texts(want)); /* the stream did not notice */
    await idle(daemon);
    const cache = await admin(daemon, '/admin/cache');
    assert.deepEqual([cache.reset_waits, cache.blocks.cached], [false, 0]);
    assert.equal(cachedTokens(await complete(daemon, { prompt: promptOf(64), max_tokens: 1 })), 0);
    await idle(daemon);
    assert.equal((await admin(daemon, '/admin/cache/reset?when=idle', {})).status, 200); /* nothing to wait for */
    const r = await admin(daemon, '/admin/cache/reset?when=later', {});
    assert.deepEqual([r.status, r.error.param], [400, 'when']);
}));
