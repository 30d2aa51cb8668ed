/* overlap_test.mjs: planning a step beside the one that runs changes nothing
 * that a client sees.  The same requests, whatever a token that is not known yet
 * may touch (penalties, seeds, stops, siblings, scores), with and without. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { postJson, start, idle } from './daemon.mjs';
import { GOLDEN, complete, completeIds, goldenThroughPreemptions, proseOf } from './requests.mjs';

const daemonWith = (overlap, args = []) =>
    start({ args: ['--dtype', 'float32', '--overlap', overlap, ...args] });

/* What of a reply must not depend on how steps are planned. */
const essence = (reply) => reply.choices.map((c) => [c.index, c.text, c.token_ids, c.finish_reason,
                                                     c.stop_reason, c.logprobs]);

const prompt = GOLDEN[0].ids;
const requests = [
    ...GOLDEN.map((g) => ({ prompt: g.ids, max_tokens: g.greedy.length })),
    { prompt, max_tokens: 40, repetition_penalty: 1.3 },
    { prompt, max_tokens: 40, presence_penalty: 0.8, frequency_penalty: 0.5 },
    { prompt, max_tokens: 40, temperature: 1, seed: 42 },
    { prompt, max_tokens: 40, temperature: 0.9, top_p: 0.9, repetition_penalty: 1.1, seed: 7 },
    { prompt, max_tokens: 24, temperature: 1, seed: 7, n: 4 },
    { prompt, max_tokens: 24, n: 3, logprobs: 3 },
    { prompt, max_tokens: 30, logit_bias: { [GOLDEN[0].greedy[0]]: -100 } },
    { prompt, max_tokens: 60, stop: [' the'] },
    { prompt, max_tokens: 60, stop_token_ids: [GOLDEN[0].greedy[9]] },
    { prompt, max_tokens: 60, stop_token_ids: [GOLDEN[0].greedy[9]], min_tokens: 30 },
    { prompt, max_tokens: 1 },
    { prompt: proseOf(200), max_tokens: 5, echo: true, logprobs: 2 },
    { prompt: proseOf(90, 2), max_tokens: 0, echo: true, logprobs: 1 },
];

async function answers(overlap, args, together) {
    const daemon = await daemonWith(overlap, args);
    try {
        const out = [];
        if (together)
            out.push(...await Promise.all(requests.map((r) => complete(daemon, r))));
        else
            for (const r of requests) out.push(await complete(daemon, r));
        await idle(daemon);
        return out.map(essence);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null });
    }
}

for (const [name, args] of [['whole prompts', []],
                            ['chunks of 7', ['--max-num-batched-tokens', '7']],
                            ['caching off', ['--no-enable-prefix-caching']]]) {
    test(`the same answers: ${name}`, async () => {
        const alone = await answers('off', args, false);
        for (const together of [false, true]) {
            const got = await answers('on', args, together);
            got.forEach((a, i) => {
                /* Scores depend on the shape of the batch in their last digits. */
                if (together) a.forEach((c) => { c[5] = null; });
                const want = together ? alone[i].map((c) => [...c.slice(0, 5), null]) : alone[i];
                assert.deepEqual(a, want, JSON.stringify(requests[i]));
            });
        }
    });
}

test('golden tokens through preemptions', async () => {
    const daemon = await daemonWith('on', ['--num-gpu-blocks-override', '24']);
    try {
        await goldenThroughPreemptions(daemon);
        await idle(daemon);
    } finally {
        await daemon.stop();
    }
});

test('clients that leave take nothing along', async () => {
    const daemon = await daemonWith('on', ['--num-gpu-blocks-override', '64']);
    try {
        for (let round = 0; round < 20; round++) {
            await Promise.all(Array.from({ length: 6 }, async (_, i) => {
                const gone = new AbortController();
                const response = await postJson(`${daemon.url}/v1/completions`, {
                    prompt: proseOf(40 + i, i), max_tokens: 150, ignore_eos: true, stream: true, n: 1 + i % 3,
                }, { signal: gone.signal });
                const reader = response.body.getReader();
                for (let k = 0; k < 1 + (round + i) % 9; k++) await reader.read();
                gone.abort();
                await reader.read().catch(() => {});
            }));
        }
        await idle(daemon);
        for (const g of GOLDEN)
            assert.deepEqual(await completeIds(daemon, { prompt: g.ids, max_tokens: 64 }), g.greedy);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null });
    }
});
