/* pool_test.mjs: cases BP-2 to BP-7: what requests hold of the block pool, by the
 * ledger, the block map and the recorded steps. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, getJson, postJson, until } from './daemon.mjs';
import { complete, completeIds, promptOf } from './requests.mjs';
import { makeModel, surePrompt } from './tiny.mjs';

const model = makeModel({ windows: [0, 0], seed: 21 });
process.on('exit', () => model.remove());

async function withDaemon(args, body) {
    const daemon = await start({ model: model.dir, args: ['--dtype', 'float32', '--poison-kv-blocks', ...args] });
    try {
        await body(daemon);
        await idle(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null }, daemon.log());
    }
}

/* The ledger, checked; every block in exactly one state. */
async function ledger(daemon) {
    const cache = await getJson(`${daemon.url}/admin/cache`);
    const { total, free, cached, held, resting } = cache.blocks;
    assert.equal(free + cached + held + resting, total);
    assert.equal(cache.ledger.check, 'ok');
    return cache.blocks;
}

test('BP-2: shared blocks count once', () => withDaemon(['--num-gpu-blocks-override', '100'], async (daemon) => {
    const common = promptOf(40 * 16 + 8, 1); /* 40 blocks, then apart in the middle of one */
    await complete(daemon, { prompt: common, max_tokens: 1 });
    const lengths = [40, 9, 23, 77, 16, 61, 5, 50]; /* they end in no order */
    let over = false, polls = 0, most = 0, wrong = null;
    const poller = (async () => {
        while (!over) {
            const { held } = await ledger(daemon);
            most = Math.max(most, held);
            polls++;
        }
    })().catch((error) => { wrong = error; });
    while (!wrong && (polls < 10 || most <= 40))
        await Promise.all(lengths.map((max_tokens, i) =>
            complete(daemon, { prompt: [...common, ...promptOf(12, 10 + i)], max_tokens })));
    over = true;
    await poller;
    if (wrong) throw wrong;
    const own = lengths.reduce((n, k) => n + Math.ceil((common.length + 12 + k - 1) / 16) - 40, 0);
    assert.ok(most <= 40 + own, `${most} held, at most ${40 + own}`);
    await idle(daemon);
    await ledger(daemon);
}));

test('BP-3: the last slot is freed once', () => withDaemon(
    ['--num-gpu-blocks-override', '32', '--max-num-batched-tokens', '4', '--max-num-seqs', '4'], async (daemon) => {
        for (const n of [7, 8, 9]) { /* ends one before, at and one after an edge */
            const r = await complete(daemon, { prompt: promptOf(n, n), max_tokens: 200 });
            assert.equal(r.usage.completion_tokens, 200);
            await idle(daemon);
            await ledger(daemon); /* no id twice in the free list: invariant 9 */
            const { blocks } = await getJson(`${daemon.url}/admin/cache/blocks`);
            const order = blocks.map((b) => b.evict_order).sort((a, b) => a - b);
            assert.deepEqual(order, blocks.map((_, i) => i));
        }
    }));

test('BP-4: a request holds the blocks of its tokens and no more', () => withDaemon(
    ['--num-gpu-blocks-override', '64', '--no-enable-prefix-caching', '--step-history', '32'], async (daemon) => {
        for (const max_tokens of [1, 15, 16, 17])
            for (let n = 1; n <= 65; n++) {
                await completeIds(daemon, { prompt: promptOf(n, 5), max_tokens });
                const { steps } = await getJson(`${daemon.url}/admin/steps?last=${max_tokens}&rows=no`);
                const peak = 64 - Math.min(...steps.map((s) => s.idle_blocks));
                assert.equal(peak, Math.ceil((n + max_tokens - 1) / 16), `${n} tokens and ${max_tokens}`);
            }
    }));

test('BP-7: siblings share the prompt and write their own', async () => {
    const { prompt, want } = surePrompt(model, 35, 40, promptOf, 3);
    await withDaemon(['--num-gpu-blocks-override', '100'], async (daemon) => {
        const sampled = { prompt, max_tokens: 40, temperature: 1, seed: 7 };
        const ids = (reply) => reply.choices.map((c) => c.token_ids);
        const alone = [];
        for (let i = 0; i < 4; i++) alone.push(await completeIds(daemon, { ...sampled, seed: 7 + i }));
        for (let i = 0; i < 2; i++) /* none altered by its siblings, and the same again */
            assert.deepEqual(ids(await complete(daemon, { ...sampled, n: 4 })), alone);
        assert.equal(new Set(alone.map(String)).size, 4);
        assert.deepEqual(ids(await complete(daemon, { prompt, max_tokens: 40, n: 4 })), Array(4).fill(want.ids));
        /* While they run: the two whole blocks of the prompt once, held by all four. */
        const control = new AbortController();
        const stream = await postJson(`${daemon.url}/v1/completions`, { prompt, max_tokens: 1500, n: 4, stream: true,
            temperature: 1, seed: 7, ignore_eos: true }, { signal: control.signal });
        await stream.body.getReader().read();
        const shared = await until(async () => {
            const { blocks } = await getJson(`${daemon.url}/admin/cache/blocks?state=held`);
            return blocks.length > 6 && blocks.filter((b) => b.refs === 4);
        });
        control.abort();
        assert.equal(shared.length, 2);
        for (const b of shared) assert.deepEqual(b.owners.map((o) => o.choice).sort(), [0, 1, 2, 3]);
    });
});
