/* prefix_test.mjs: cases PC-5 to PC-13 of the prefix cache, on the small model of
 * tiny.mjs whose answers are known.  (PC-1 and PC-2: cache_test.mjs.) */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, getJson, postJson, SLOW_BUILD } from './daemon.mjs';
import { complete, cachedTokens, promptOf } from './requests.mjs';
import { makeModel, Reference, surePrompt } from './tiny.mjs';

const model = makeModel({ windows: [0, 0], seed: 31 });
const deep = makeModel({ windows: [0, 0, 0, 0], seed: 32 }); /* takes its time over a prompt */
process.on('exit', () => { model.remove(); deep.remove(); });

async function withDaemon(args, body, { dir } = model) {
    const daemon = await start({ model: dir, args: ['--dtype', 'float32', '--poison-kv-blocks', ...args] });
    try {
        await body(daemon);
        await idle(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null }, daemon.log());
    }
}

/* The reference's answer, ids and log probabilities; the reply. */
async function answers(daemon, { prompt, want }) {
    const reply = await complete(daemon, { prompt, max_tokens: want.ids.length, logprobs: 0 });
    const { token_ids, logprobs, finish_reason } = reply.choices[0];
    assert.deepEqual(token_ids, want.ids);
    assert.equal(finish_reason, 'length');
    logprobs.token_logprobs.forEach((v, i) => assert.ok(Math.abs(v - want.logprobs[i]) < 1e-3));
    return reply;
}

test('PC-5: prompt scores do not come from a hit', () => withDaemon(['--num-gpu-blocks-override', '60'], async (daemon) => {
    const prompt = promptOf(100, 1);
    const echo = async () => {
        const { choices: [c] } = await complete(daemon, { prompt, echo: true, logprobs: 2, max_tokens: 1 });
        return c.logprobs;
    };
    const cold = await echo();
    assert.equal(cold.token_logprobs.length, 101);
    assert.equal(cold.top_logprobs.length, 101);
    assert.deepEqual([cold.token_logprobs[0], cold.top_logprobs[0]], [null, null]);
    const reference = new Reference(model);
    prompt.forEach((id, i) => {
        if (i > 0) assert.ok(Math.abs(cold.token_logprobs[i] - reference.logprobs()[id]) < 1e-3, `token ${i}`);
        reference.feed(id);
    });
    await complete(daemon, { prompt, max_tokens: 4 });
    assert.equal(cachedTokens(await complete(daemon, { prompt, max_tokens: 1 })), 96); /* it would hit */
    assert.deepEqual(await echo(), cold);
    await Promise.all([2, 3, 4, 5, 6, 7].map((i) => complete(daemon, { prompt: promptOf(150, i), max_tokens: 20 })));
    assert.deepEqual(await echo(), cold);
}));

test('PC-7: nothing is left of what was evicted', () => withDaemon(['--num-gpu-blocks-override', '40'], async (daemon) => {
    const p = surePrompt(model, 24 * 16, 6, promptOf, 1); /* 60% of the pool */
    for (let pass = 0; pass < 5; pass++) {
        assert.equal(cachedTokens(await answers(daemon, p)), 0, `pass ${pass}`);
        for (let i = 0; i < 16; i++) /* four pools */
            await complete(daemon, { prompt: promptOf(10 * 16, 100 + 16 * pass + i), max_tokens: 1 });
    }
    assert.equal(cachedTokens(await answers(daemon, p)), 0);
}));

/* How likely a value of xs is above one of ys: 0.5 when they are alike. */
function auc(xs, ys) {
    let n = 0;
    for (const x of xs) for (const y of ys) n += x > y ? 1 : x === y ? 0.5 : 0;
    return n / xs.length / ys.length;
}

/* Latencies are compared where the build is what is served. */
test('PC-11: nobody learns from the time what another one sent', () => withDaemon(
    ['--num-gpu-blocks-override', '4000', '--served-model-name', 'tiny', '--max-num-batched-tokens', '2048'], async (daemon) => {
        const time = async (prompt, cache_salt) => {
            const began = performance.now();
            const reply = await complete(daemon, { prompt, max_tokens: 1, return_token_ids: false,
                ...(cache_salt === undefined ? {} : { cache_salt }) });
            return { ms: performance.now() - began, cached: cachedTokens(reply) };
        };
        const probes = [undefined, 'b', 'tiny']; /* none, another, and one that names what else is in the key */
        const probe = [], cold = [], hit = [];
        let seed = 1000;
        for (let round = 0; round < (SLOW_BUILD ? 5 : 50); round++) {
            const secret = promptOf(1024, seed++);
            assert.equal((await time(secret, 'a')).cached, 0);
            for (const salt of probes) {
                /* Which of the two goes first alternates, so that neither is favoured. */
                const pair = [async () => cold.push((await time(promptOf(1024, seed++), salt)).ms), async () => {
                    const r = await time(secret, salt);
                    assert.equal(r.cached, 0, `salt ${salt}`);
                    probe.push(r.ms);
                }];
                for (const run of round % 2 ? pair : pair.reverse()) await run();
            }
            const own = await time(secret, 'a');
            assert.equal(own.cached, 1008);
            hit.push(own.ms);
        }
        const empty = await postJson(`${daemon.url}/v1/completions`, { prompt: 'x', cache_salt: '' });
        assert.equal(empty.status, 400);
        assert.equal((await empty.json()).error.param, 'cache_salt');
        if (SLOW_BUILD) return;
        const told = auc(cold, probe), control = auc(cold, hit);
        assert.ok(told <= 0.6, `probes against cold: AUC ${told.toFixed(3)}`);
        assert.ok(control > 0.75, `hits against cold: AUC ${control.toFixed(3)}`); /* the clock would show it */
    }, deep));

test('PC-12: no answer carries another request\'s text', () => withDaemon(
    ['--num-gpu-blocks-override', '12', '--max-num-seqs', '2'], async (daemon) => { /* holds three */
        const jobs = Array.from({ length: 40 }, (_, i) => surePrompt(model, 48, 16, promptOf, 1000 * (i + 1)));
        let next = 0;
        await Promise.all([0, 1].map(async () => {
            while (next < jobs.length) await answers(daemon, jobs[next++]);
        }));
    }));

test('PC-13: a reset while busy changes nothing, one while idle everything', () => withDaemon(
    ['--num-gpu-blocks-override', '80'], async (daemon) => {
        const prompt = promptOf(64, 2);
        const want = (await complete(daemon, { prompt, max_tokens: 500 })).choices[0].token_ids;
        const reset = () => fetch(`${daemon.url}/admin/cache/reset`, { method: 'POST' });
        const response = await postJson(`${daemon.url}/v1/completions`, { prompt, max_tokens: 500, temperature: 0,
            ignore_eos: true, return_token_ids: true, stream: true });
        const reader = response.body.getReader();
        let text = Buffer.from((await reader.read()).value).toString();
        const refused = await reset();
        assert.equal(refused.status, 409);
        assert.match((await refused.json()).error.message, /1 sequences run, 0 requests wait and hold \d+ blocks/);
        for (let r; !(r = await reader.read()).done;) text += Buffer.from(r.value).toString();
        const ids = [...text.matchAll(/^data: (\{.*\})$/gm)].flatMap((m) => JSON.parse(m[1]).choices[0].token_ids);
        assert.deepEqual(ids, want);
        assert.equal(cachedTokens(await complete(daemon, { prompt, max_tokens: 1 })), 48);
        await idle(daemon);
        assert.equal((await reset()).status, 200);
        assert.equal((await getJson(`${daemon.url}/admin/cache`)).blocks.cached, 0);
        const again = await complete(daemon, { prompt, max_tokens: 500 });
        assert.equal(cachedTokens(again), 0);
        assert.deepEqual(again.choices[0].token_ids, want);
    }));
