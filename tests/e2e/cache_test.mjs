/* cache_test.mjs: what clients see of the prefix cache and the block pool:
 * warm equals cold, one token is always recomputed, every length at every block
 * edge, nothing lost over traffic. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, getJson, postJson } from './daemon.mjs';
import { answers, assertSame, completeIds, proseOf, promptOf } from './requests.mjs';

const EXACT = ['--dtype', 'float32'];

/* Run body with a caching daemon and the same requests' answers from one with
 * caching off. */
async function withPair(args, body) {
    const daemon = await start({ args: [...EXACT, ...args] });
    const cold = await start({ args: [...EXACT, '--no-enable-prefix-caching'] });
    try {
        await body(daemon, (request) => answers(cold, request));
        await idle(daemon);
    } finally {
        await Promise.all([daemon.stop(), cold.stop()]);
    }
}

test('PC-1: warm equals cold', () => withPair([], async (daemon, cold) => {
    const first = { prompt: proseOf(53), max_tokens: 64 };
    const want = await cold(first);
    for (const cached of [0, 48, 48]) {
        const got = await answers(daemon, first);
        assertSame(got, want);
        assert.equal(got.cached, cached);
    }
    const second = { prompt: [...proseOf(40), ...proseOf(13, 2)], max_tokens: 64 };
    const got = await answers(daemon, second);
    assertSame(got, await cold(second));
    assert.equal(got.cached, 32);
}));

test('PC-2: a whole prompt cached', () => withPair([], async (daemon, cold) => {
    for (const n of [16, 64, 1024]) {
        const body = { prompt: proseOf(n, 1), max_tokens: 8 };
        const want = await cold(body);
        for (const cached of [0, n - 16]) {
            const got = await answers(daemon, body);
            assertSame(got, want, `${n} tokens`);
            if (cached > 0 || n === 16) assert.equal(got.cached, cached, `${n} tokens`);
        }
    }
    const prompt = proseOf(64, 3), [want] = await cold({ prompt, max_tokens: 8 });
    for (let i = 0; i < 2; i++) /* two in one step, cold and then warm */
        assertSame(await answers(daemon, { prompt: [prompt, prompt], max_tokens: 8 }), [want, want], 'twins');
    const { steps } = await getJson(`${daemon.url}/admin/steps`);
    assert.ok(steps.some((s) => s.rows === 2 && s.tokens === 128), 'both in one step');
}));

test('BP-4: every length at every edge', () => withPair(
    ['--num-gpu-blocks-override', '64'], async (daemon, cold) => {
        const lengths = Array.from({ length: 65 }, (_, i) => i + 1);
        for (const max_tokens of [1, 15, 16, 17]) {
            const bodies = lengths.map((n) => ({ prompt: proseOf(n, 4), max_tokens }));
            const want = await Promise.all(bodies.map(cold));
            const got = await Promise.all(bodies.map((b) => answers(daemon, b)));
            got.forEach((g, i) => assertSame(g, want[i], `${i + 1} tokens and ${max_tokens}`));
        }
    }));

test('BP-1: no block is lost over traffic', async () => {
    const daemon = await start({ args: [...EXACT, '--num-gpu-blocks-override', '200'] });
    try {
        const same = { prompt: proseOf(33), max_tokens: 4 };
        const want = await completeIds(daemon, same);
        for (let i = 0; i < 200; i++) assert.deepEqual(await completeIds(daemon, same), want);
        let polls = 0;
        const mixed = async (i) => {
            const prompt = promptOf(5 + i * 7 % 90, i % 40);
            const control = new AbortController();
            const bodies = [
                { max_tokens: 1 + i % 12 },
                { max_tokens: 12, stop: ['e'], ignore_eos: false },
                { max_tokens: 40, stream: true },
                { max_tokens: -1 },
                { max_tokens: 3, n: 3, temperature: 1, seed: i },
            ];
            const kind = i % bodies.length;
            if (kind === 2) setTimeout(() => control.abort(), i % 23);
            try {
                const response = await postJson(`${daemon.url}/v1/completions`,
                    { prompt, ...bodies[kind] }, { signal: control.signal });
                assert.equal(response.status, kind === 3 ? 400 : 200);
                await response.text();
            } catch (error) {
                if (error.name !== 'AbortError') throw error;
            }
            if (i % 50 === 0) {
                const { blocks } = await getJson(`${daemon.url}/admin/cache`);
                assert.equal(blocks.free + blocks.cached + blocks.held + blocks.resting,
                             blocks.total);
                polls++;
            }
        };
        for (let i = 0; i < 2000; i += 20)
            await Promise.all(Array.from({ length: 20 }, (_, k) => mixed(i + k)));
        assert.equal(polls, 40);
        await idle(daemon);
        assert.deepEqual(await completeIds(daemon, same), want);
    } finally {
        await daemon.stop();
    }
});
