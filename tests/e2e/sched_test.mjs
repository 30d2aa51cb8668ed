/* sched_test.mjs: cases PR-1 to PR-6: preemption, and what a step in flight may do
 * to it, on the small model of tiny.mjs whose answers are known. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { start, idle, getJson, postJson, sleep, until, QUIRED } from './daemon.mjs';
import { complete, metric, promptOf } from './requests.mjs';
import { makeModel, surePrompt } from './tiny.mjs';

const OVERLAP = execFileSync(QUIRED, ['--help'], { encoding: 'utf8' }).includes('--overlap') ? ['--overlap', 'on'] : [];
const model = makeModel({ windows: [0, 0], seed: 11 });
process.on('exit', () => model.remove());

/* Four streams that need ten blocks each, of the 24 there are. */
const POOL = ['--num-gpu-blocks-override', '24', '--max-model-len', '320'];
const growing = [1, 2, 3, 4].map((i) => surePrompt(model, 20, 200, promptOf, 100 * i)); /* or fourteen */
const four = [1, 2, 3, 4].map((i) => surePrompt(model, 20 + i, 140 - i, promptOf, 100 * i));

async function withDaemon(args, body) {
    const daemon = await start({ model: model.dir, args: ['--dtype', 'float32', '--poison-kv-blocks',
        '--step-history', '4096', '--log-format', 'json', ...args] });
    try {
        await body(daemon);
        await idle(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null }, daemon.log());
    }
}

/* The answer in one piece. */
async function whole(daemon, { prompt, want }) {
    const r = await complete(daemon, { prompt, max_tokens: want.ids.length });
    assert.deepEqual(r.choices[0].token_ids, want.ids);
    assert.equal(r.usage.completion_tokens, want.ids.length);
    assert.equal(r.choices[0].finish_reason, 'length');
}

/* The same from the deltas of a stream. */
async function streamed(daemon, { prompt, want }) {
    const response = await postJson(`${daemon.url}/v1/completions`, { prompt, max_tokens: want.ids.length,
        temperature: 0, ignore_eos: true, return_token_ids: true, stream: true, stream_options: { include_usage: true } });
    const events = [...(await response.text()).matchAll(/^data: (\{.*\})$/gm)].map((m) => JSON.parse(m[1]));
    assert.deepEqual(events.flatMap((e) => e.choices.flatMap((c) => c.token_ids ?? [])), want.ids);
    assert.equal(events.at(-1).usage.completion_tokens, want.ids.length);
}

/* Follow every sequence through the recorded steps: what was taken from it, and
 * when.  No step gives a token before the prompt is computed. */
async function preemptions(daemon, prompts) {
    const { steps } = await getJson(`${daemon.url}/admin/steps?last=4096`);
    const of = new Map(), found = { prefill: 0, decode: 0, most: 0 };
    const shortest = Math.min(...prompts.map((c) => c.prompt.length));
    for (const s of steps) {
        let due = 0;
        for (const r of s.rows_detail) {
            const q = of.get(r.request) ?? { computed: 0, left: 0, told: 0, times: 0 };
            if (r.past < q.computed) {
                found[q.left > 0 && q.told === 0 ? 'prefill' : 'decode']++;
                found.most = Math.max(found.most, ++q.times);
            }
            const whole = r.left === 0;
            of.set(r.request, { ...q, computed: r.past + r.tokens, left: r.left, told: q.told + whole });
            assert.ok(!whole || r.past + r.tokens >= shortest);
            due += whole;
        }
        assert.equal(s.outputs, due, JSON.stringify(s));
    }
    return found;
}

test('PR-1: preempted while decoding, and again', async () => {
    for (const q of ['7', '16', '512'])
        await withDaemon([...POOL, '--look-ahead-tokens', '1', '--max-num-batched-tokens', q, '--max-num-seqs', '7'],
            async (daemon) => {
                await Promise.all(four.map((c) => whole(daemon, c)));
                assert.ok(await metric(daemon, 'vllm:num_preemptions_total') > 0);
                const eight = [...growing, ...growing]; /* in one request, so that they always meet alike */
                const { choices } = await complete(daemon, { prompt: eight.map((c) => c.prompt), max_tokens: 200 });
                choices.forEach((c, i) => assert.deepEqual(c.token_ids, eight[i].want.ids, `Q ${q}, prompt ${i}`));
                const found = await preemptions(daemon, growing);
                assert.ok(found.decode > 0 && found.most >= 2, `Q ${q}: ${JSON.stringify(found)}`);
            });
});

test('PR-1: preempted part-way through a prompt, before the first token', async () => {
    /* Three prompts in one request, so that they meet in the same steps every time:
     * the third begins when the pool has just room for it, three tokens a step, and
     * has computed least when the others have grown into what it was counting on. */
    const jobs = [surePrompt(model, 100, 80, promptOf, 50), surePrompt(model, 100, 80, promptOf, 150),
        surePrompt(model, 130, 80, promptOf, 250)];
    await withDaemon([...POOL, '--look-ahead-tokens', '1', '--max-num-batched-tokens', '5', '--max-num-seqs', '5',
        '--no-enable-prefix-caching'], async (daemon) => {
        const { choices } = await complete(daemon, { prompt: jobs.map((c) => c.prompt), max_tokens: 80 });
        choices.forEach((c, i) => assert.deepEqual(c.token_ids, jobs[i].want.ids, `prompt ${i}`));
        const found = await preemptions(daemon, jobs);
        assert.ok(found.prefill > 0, JSON.stringify(found));
    });
});

test('PR-3: a token in flight is neither lost nor told twice', async () => {
    for (const q of ['1', '7', '16', '17', '4096'])
        await withDaemon([...POOL, ...OVERLAP, '--look-ahead-tokens', '1', '--max-num-batched-tokens', q,
            '--max-num-seqs', q === '1' ? '1' : '7'], async (daemon) => {
            await Promise.all([...four, ...four].map((c) => streamed(daemon, c)));
            const found = await preemptions(daemon, four);
            if (q !== '1') assert.ok(found.decode > 0, `Q ${q}: ${JSON.stringify(found)}`);
        });
});

test('PR-4: a prompt that nearly fills the pool is not resumed in vain', async () => {
    const long = surePrompt(model, 960, 20, promptOf, 7), streams = four.slice(0, 3);
    for (const longFirst of [true, false])
        await withDaemon(['--num-gpu-blocks-override', '64', '--max-model-len', '1024', ...OVERLAP], async (daemon) => {
            const id = 'the-long-one';
            const ask = async () => {
                const r = await postJson(`${daemon.url}/v1/completions`, { prompt: long.prompt, max_tokens: 20,
                    temperature: 0, ignore_eos: true, return_token_ids: true }, { headers: { 'x-request-id': id } });
                assert.deepEqual((await r.json()).choices[0].token_ids, long.want.ids);
            };
            const jobs = longFirst ? [ask()] : streams.map((c) => streamed(daemon, c));
            await until(async () => (await getJson(`${daemon.url}/admin/cache`)).requests.running === jobs.length, 10000, 1);
            jobs.push(...(longFirst ? streams.map((c) => streamed(daemon, c)) : [ask()]));
            await Promise.all(jobs);
            const line = daemon.log().split('\n').find((l) => l.includes(id));
            assert.ok(JSON.parse(line).preemptions <= 3, line);
        });
});

test('PR-6: metrics stay true through preemptions', () => withDaemon(
    [...POOL, ...OVERLAP, '--look-ahead-tokens', '1'], async (daemon) => {
    const counters = async () => {
        const text = await (await fetch(`${daemon.url}/metrics`)).text();
        return new Map([...text.matchAll(/^(\S+?(?:_total|_count|_bucket|_sum)\S*) (\S+)$/gm)].map((m) => [m[1], Number(m[2])]));
    };
    let last = await counters(), scrapes = 0, over = false, wrong = null;
    const scraper = (async () => {
        while (!over) {
            const now = await counters();
            for (const [name, v] of last) assert.ok(now.get(name) >= v, `${name}: ${v}, then ${now.get(name)}`);
            const of = (name) => [...now].find(([k]) => k.startsWith(`vllm:prefix_cache_${name}_total`))[1];
            assert.ok(of('hits') <= of('queries'));
            last = now;
            scrapes++;
            await sleep(50);
        }
    })().catch((error) => { wrong = error; });
    let passes = 0;
    for (; !wrong && scrapes < 5; passes++) await Promise.all([...four, ...four].map((c) => whole(daemon, c)));
    over = true;
    await scraper;
    if (wrong) throw wrong;
    assert.ok(await metric(daemon, 'vllm:num_preemptions_total') > 0);
    await idle(daemon);
    for (const name of ['vllm:num_requests_running', 'vllm:num_requests_waiting', 'vllm:kv_cache_usage_perc'])
        assert.equal(await metric(daemon, name), 0, name);
    /* A preempted request's return is no query. */
    assert.equal(await metric(daemon, 'vllm:prefix_cache_queries_total'),
        2 * passes * four.reduce((n, c) => n + c.prompt.length, 0));
    assert.equal(await metric(daemon, 'vllm:generation_tokens_total'),
        2 * passes * four.reduce((n, c) => n + c.want.ids.length, 0));
}));
