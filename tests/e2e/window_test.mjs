/* window_test.mjs: cases SW-1 to SW-10: sliding windows against the plain
 * JavaScript model of tiny.mjs, which has masks and no ring. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, getJson, postJson, SLOW_BUILD } from './daemon.mjs';
import { complete, completeIds, cachedTokens, promptOf } from './requests.mjs';
import { makeModel, Reference, surePrompt } from './tiny.mjs';

/* Run body with a daemon on a model of these windows. */
async function withTiny(model, args, body) {
    const daemon = await start({ model: model.dir, args: ['--dtype', 'float32', '--poison-kv-blocks',
        '--num-gpu-blocks-override', '300', ...args] });
    try {
        await body(daemon);
        await idle(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null }, daemon.log());
    }
}

function near(got, want, what) {
    assert.equal(got.length, want.length, what);
    got.forEach((v, i) => assert.ok(Math.abs(v - want[i]) < 1e-3, `${what}[${i}]: ${v}, expected ${want[i]}`));
}

/* Ids and log probabilities of the reference. */
async function answers(daemon, { prompt, want }, what) {
    const { choices: [c] } = await complete(daemon, { prompt, max_tokens: want.ids.length, logprobs: 0 });
    assert.deepEqual(c.token_ids, want.ids, what);
    assert.equal(c.finish_reason, 'length');
    near(c.logprobs.token_logprobs, want.logprobs, what);
}

/* The log probability of each prompt token but the first. */
function scores(model, prompt) {
    const r = new Reference(model), out = [];
    prompt.forEach((id, i) => {
        if (i > 0) out.push(r.logprobs()[id]);
        r.feed(id);
    });
    return out;
}

test('SW-1: the window counts the current token, in prefill and in decode', async () => {
    const model = makeModel({ windows: [4] });
    const tokens = promptOf(12, 3);
    const changed = (at) => tokens.map((id, i) => i === at ? (id + 7) % 4000 + 5 : id);
    await withTiny(model, [], async (daemon) => {
        /* What position 8 predicts. */
        const prefill = async (prompt) => {
            const { choices: [c] } = await complete(daemon, { prompt, max_tokens: 1, echo: true, logprobs: 20 });
            near(c.logprobs.token_logprobs.slice(1, 12), scores(model, prompt), 'prompt');
            return JSON.stringify(c.logprobs.top_logprobs[9]);
        };
        const decode = async (prompt) => {
            const { choices: [c] } = await complete(daemon, { prompt: prompt.slice(0, 8), max_tokens: 2, logprobs: 20,
                logit_bias: { [prompt[8]]: 100 } });
            assert.equal(c.token_ids[0], prompt[8]);
            return JSON.stringify(c.logprobs.top_logprobs[1]);
        };
        for (const read of [prefill, decode]) {
            const plain = await read(tokens);
            assert.equal(await read(changed(4)), plain, `${read.name}: key 4 is outside`);
            assert.notEqual(await read(changed(5)), plain, `${read.name}: key 5 is inside`);
        }
        const a = JSON.parse(await prefill(tokens)), b = JSON.parse(await decode(tokens));
        for (const k of Object.keys(a).slice(0, 18)) assert.ok(Math.abs(a[k] - b[k]) < 1e-3, `${k}: ${a[k]} ${b[k]}`);
    });
    model.remove();
});

test('SW-2: packed prompts see their own keys alone', async () => {
    const model = makeModel({ windows: [4, 4] });
    await withTiny(model, [], async (daemon) => {
        const prompt = [promptOf(16, 1), promptOf(40, 2)];
        const { choices } = await complete(daemon, { prompt, max_tokens: 1, echo: true, logprobs: 0 });
        choices.forEach((c, i) =>
            near(c.logprobs.token_logprobs.slice(1, prompt[i].length), scores(model, prompt[i]), `prompt ${i}`));
        const { steps } = await getJson(`${daemon.url}/admin/steps`);
        assert.ok(steps.some((s) => s.rows === 2 && s.tokens === 56), 'both in one step');
    });
    model.remove();
});

test('SW-4: the ring goes round', async () => {
    const W = 32, model = makeModel({ windows: [W, W], seed: 2 });
    const cases = [W - 1, W, W + 1, 2 * W, 2 * W + 1].map((n) => surePrompt(model, n, 3 * W, promptOf, n));
    await withTiny(model, [], async (daemon) => {
        for (const c of cases) await answers(daemon, c, `${c.prompt.length} tokens alone`);
        await Promise.all(cases.map((c) => answers(daemon, c, `${c.prompt.length} tokens together`)));
    });
    await withTiny(model, ['--max-num-batched-tokens', '7', '--max-num-seqs', '7', '--no-enable-prefix-caching'],
        (daemon) => Promise.all(cases.map((c) => answers(daemon, c, `${c.prompt.length} tokens in chunks`))));
    model.remove();
});

/* Int8 caches are the operator's (tests/property); the daemon's are floats. */
test('SW-6: recycled blocks below the window are never read', async () => {
    const model = makeModel({ windows: [512, 0], seed: 3 });
    const first = surePrompt(model, 1500, 4, promptOf, 1);
    const prompts = [first.prompt, ...Array.from({ length: SLOW_BUILD ? 7 : 47 }, (_, i) => promptOf(1500, 100 + i))];
    const run = async (args) => {
        const ids = [];
        await withTiny(model, ['--no-enable-prefix-caching', '--num-gpu-blocks-override', '800', '--max-num-seqs', '6',
            ...args], async (daemon) => {
            const { choices: [c] } = await complete(daemon, { prompt: first.prompt, max_tokens: 4, logprobs: 0 });
            near(c.logprobs.token_logprobs, first.want.logprobs, 'reference');
            let next = 0;
            await Promise.all(Array.from({ length: 6 }, async () => {
                while (next < prompts.length) {
                    const i = next++;
                    ids[i] = await completeIds(daemon, { prompt: prompts[i], max_tokens: 4 });
                }
            }));
        });
        assert.deepEqual(ids[0], first.want.ids);
        return ids;
    };
    assert.deepEqual(await run([]), await run(['--no-poison-kv-blocks']));
    model.remove();
});

test('SW-7: 500 windowed requests, shared prefixes, random cancels', async () => {
    const W = 32, model = makeModel({ windows: [W, 0], seed: 4 });
    await withTiny(model, ['--num-gpu-blocks-override', '120', '--max-num-seqs', '12'], async (daemon) => {
        let next = 0, seed = 1, polls = 0;
        const below = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
        const client = async () => {
            while (next < 500) {
                const i = next++, n = 3 * W + below(3 * W);
                const prompt = [...promptOf(2 * W, i % 5), ...promptOf(n - 2 * W, 1000 + i)];
                const control = new AbortController();
                const stop = below(3) === 0 ? setTimeout(() => control.abort(), below(40)) : null;
                try {
                    const r = await postJson(`${daemon.url}/v1/completions`, { prompt, max_tokens: 1 + below(2 * W),
                        ignore_eos: true, stream: below(2) === 0 }, { signal: control.signal });
                    assert.equal(r.status, 200);
                    await r.text();
                } catch (error) {
                    if (error.name !== 'AbortError') throw error;
                }
                clearTimeout(stop);
                if (i % 25 === 0) {
                    const { blocks, groups, ledger } = await getJson(`${daemon.url}/admin/cache`);
                    assert.equal(ledger.check, 'ok');
                    assert.equal(blocks.free + blocks.cached + blocks.held + blocks.resting, blocks.total);
                    assert.equal(groups.reduce((a, g) => a + g.held, 0), blocks.held);
                    polls++;
                }
            }
        };
        await Promise.all(Array.from({ length: 12 }, client));
        assert.equal(polls, 20);
        await idle(daemon);
        await answers(daemon, surePrompt(model, 3 * W, 8, promptOf, 9), 'afterwards');
    });
    model.remove();
});

test('SW-8: an edited history falls back to what is still known', async () => {
    const model = makeModel({ windows: [64, 64], seed: 5 });
    const chat = surePrompt(model, 300, 20, promptOf, 1);
    const edited = (n, from, to) => surePrompt(model, n, 20,
        (_, s) => chat.prompt.map((id, i) => i >= from && i < to ? (id + 3 + s) % 4000 + 5 : id));
    const early = edited(300, 100, 101), late = edited(300, 297, 300);
    await withTiny(model, [], async (daemon) => {
        const cached = async (c) => {
            const r = await complete(daemon, { prompt: c.prompt, max_tokens: 20, logprobs: 0 });
            assert.deepEqual(r.choices[0].token_ids, c.want.ids);
            near(r.choices[0].logprobs.token_logprobs, c.want.logprobs, 'chat');
            return cachedTokens(r);
        };
        assert.equal(await cached(chat), 0);
        assert.ok(await cached(early) <= 96);
        assert.equal(await cached(late), 288);
        assert.equal(await cached(chat), 288);
    });
    model.remove();
});

test('SW-9: chats keep hitting in a pool of four times their size', async () => {
    const CHATS = 4, TURNS = 5, OUT = 20, model = makeModel({ windows: [64, 0], seed: 6 });
    /* 420 tokens at the end: 27 blocks and a window's 5, four chats, four times. */
    await withTiny(model, ['--num-gpu-blocks-override', String(4 * 4 * (27 + 5))], async (daemon) => {
        const chats = Array.from({ length: CHATS }, (_, i) => ({ text: [], ref: new Reference(model), fed: 0, i }));
        for (let turn = 0; turn < TURNS; turn++) {
            for (const chat of chats) {
                const before = chat.text.length;
                chat.text.push(...promptOf(turn === 0 ? 200 : 35, 10 * chat.i + turn + 1));
                const r = await complete(daemon, { prompt: chat.text, max_tokens: OUT, logprobs: 0 });
                const { token_ids, logprobs } = r.choices[0];
                if (turn > 0)
                    assert.ok(cachedTokens(r) >= 0.9 * before, `turn ${turn}: ${cachedTokens(r)} of ${before}`);
                token_ids.forEach((id, k) => { /* the reference agrees with every token */
                    while (chat.fed < chat.text.length) chat.ref.feed(chat.text[chat.fed++]);
                    const lp = chat.ref.logprobs();
                    assert.ok(Math.abs(lp[id] - logprobs.token_logprobs[k]) < 1e-3);
                    assert.ok(lp.every((v) => v <= lp[id] + 1e-3));
                    chat.text.push(id);
                });
            }
        }
    });
    model.remove();
});

test('SW-10: a window beyond the context is full attention', async () => {
    const model = makeModel({ windows: [32768, 32768], seed: 7, positions: 65536 });
    const full = { ...model, windows: [0, 0] };
    const c = surePrompt(full, 500, 12, promptOf, 1);
    const args = (blocks) => ['--max-model-len', '512', '--num-gpu-blocks-override', blocks];
    await withTiny(model, args('32'), (daemon) => answers(daemon, c, '500 tokens')); /* 512 of them, no more */
    const small = await start({ model: model.dir, args: args('31'), ready: false });
    assert.equal((await small.exited).code, 1);
    assert.match(small.log(), /--max-model-len 512 needs 32 KV blocks, the pool has 31/);
    model.remove();
});
