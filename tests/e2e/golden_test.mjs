/* golden_test.mjs: the bundled model repeats the reference implementation's
 * greedy tokens in float32, however its work is cut up: alone, batched, in small
 * chunks, over prefix hits, and through preemptions. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle } from './daemon.mjs';
import { GOLDEN, complete, completeIds, cachedTokens, goldenThroughPreemptions } from './requests.mjs';

async function withDaemon(args, body) {
    const daemon = await start({ args: ['--dtype', 'float32', ...args] });
    try {
        await body(daemon);
        await idle(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null });
    }
}

const whole = (g) => ({ prompt: g.ids, max_tokens: g.greedy.length });

async function allAlone(daemon) {
    for (const g of GOLDEN) assert.deepEqual(await completeIds(daemon, whole(g)), g.greedy);
}

async function allAtOnce(daemon, n) {
    const jobs = Array.from({ length: n }, (_, i) => GOLDEN[i % GOLDEN.length]);
    const got = await Promise.all(jobs.map((g) => completeIds(daemon, whole(g))));
    got.forEach((ids, i) => assert.deepEqual(ids, jobs[i].greedy, `request ${i}`));
}

test('alone, and the text is the reference text', () => withDaemon([], async (daemon) => {
    for (const g of GOLDEN) {
        const reply = await complete(daemon, whole(g));
        assert.deepEqual(reply.choices[0].token_ids, g.greedy);
        assert.equal(reply.choices[0].text, g.text);
        assert.equal(reply.choices[0].finish_reason, 'length');
        assert.equal(reply.usage.completion_tokens, g.greedy.length);
    }
}));

test('32 at once', () => withDaemon([], (daemon) => allAtOnce(daemon, 32)));

for (const budget of ['7', '16']) {
    test(`chunks of ${budget} tokens`, () => withDaemon(
        ['--max-num-batched-tokens', budget, '--max-num-seqs', budget], async (daemon) => {
            await allAlone(daemon);
            await allAtOnce(daemon, 10);
        }));
}

test('over a prefix hit', () => withDaemon([], async (daemon) => {
    for (const g of GOLDEN) {
        const prompt = [...g.ids, ...g.greedy.slice(0, 40)];
        const body = { prompt, max_tokens: 24 };
        for (const expected of [0, Math.floor((prompt.length - 1) / 16) * 16]) {
            const reply = await complete(daemon, body);
            assert.deepEqual(reply.choices[0].token_ids, g.greedy.slice(40));
            assert.equal(cachedTokens(reply), expected);
        }
    }
}));

test('caching off', () => withDaemon(['--no-enable-prefix-caching'], async (daemon) => {
    await allAlone(daemon);
    await allAtOnce(daemon, 10);
    const reply = await complete(daemon, whole(GOLDEN[3]));
    assert.equal(cachedTokens(reply), 0);
}));

test('a pool so small that requests are preempted', () => withDaemon(
    ['--num-gpu-blocks-override', '24'], goldenThroughPreemptions));
