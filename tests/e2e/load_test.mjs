/* load_test.mjs: external load clients against the daemon on loopback: 200
 * streams at once with none lost, resident memory flat, the ledger exact
 * afterwards; the client's prompts are other ones in each run unless its seed is
 * given; plain requests by autocannon. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import { promisify } from 'node:util';
import autocannon from 'autocannon';
import { start, idle, rss, QUIRED } from './daemon.mjs';
import { completeIds, GOLDEN } from './requests.mjs';

const run = promisify(execFile);
const CLIENT = path.join(path.dirname(QUIRED), 'tests/stream_load');

async function load(daemon, ...args) {
    try {
        const { stdout } = await run(CLIENT, ['--port', String(daemon.port), '--json', ...args]);
        return JSON.parse(stdout);
    } catch (error) {
        throw new Error(`${error.stdout}\n${error.stderr}`);
    }
}

test('200 streams at once: none lost, memory flat, ledger exact', async () => {
    const daemon = await start({ args: ['--dtype', 'float32', '--max-num-seqs', '64',
                                        '--num-gpu-blocks-override', '800'] });
    try {
        const wave = ['--concurrency', '200', '--requests', '200', '--prompt-tokens', '48',
                      '--max-tokens', '24', '--ignore-eos'];
        /* The first waves touch every block of the pool, which is committed lazily. */
        for (const seed of ['4', '5']) await load(daemon, ...wave, '--seed', seed);
        await idle(daemon);
        const before = rss(daemon.pid);
        for (const seed of ['2', '3']) {
            const result = await load(daemon, ...wave, '--seed', seed);
            assert.deepEqual([result.done, result.lost, result.refused], [200, 0, 0]);
            assert.equal(result.output_tokens, 200 * 24);
        }
        await idle(daemon);
        const grown = rss(daemon.pid) - before;
        const room = process.env.QUIRED?.includes('release') ? 8 : 64;
        assert.ok(grown < room << 20, `resident memory grew by ${grown >> 10} KiB`);
        const g = GOLDEN[2];
        assert.deepEqual(await completeIds(daemon, { prompt: g.ids, max_tokens: 64 }), g.greedy);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null });
    }
});

test('stream_load draws other prompts in each run, unless it is given a seed', async () => {
    const daemon = await start({ args: ['--enable-prefix-caching'] });
    try {
        const wave = ['--concurrency', '2', '--requests', '8', '--prompt-tokens', '64', '--max-tokens', '2'];
        const cached = [];
        for (const seed of [[], [], ['--seed', '7'], ['--seed', '7']]) {
            const result = await load(daemon, ...wave, ...seed);
            assert.equal(result.done, 8);
            assert.ok(result.prompt_tokens >= 8 * 64);
            cached.push(result.cached_tokens);
        }
        assert.deepEqual(cached.slice(0, 3), [0, 0, 0]);
        assert.ok(cached[3] > 0, `${cached[3]} cached tokens of the same prompts`);
    } finally {
        await daemon.stop();
    }
});

test('streams cut at random: none lost, nothing leaks', async () => {
    const daemon = await start({ args: ['--max-num-seqs', '32', '--num-gpu-blocks-override', '400'] });
    try {
        const result = await load(daemon, '--concurrency', '50', '--requests', '400', '--chat',
                                  '--prompt-tokens', '30', '--max-tokens', '16', '--ignore-eos',
                                  '--cancel-share', '0.5');
        assert.equal(result.lost + result.refused, 0);
        assert.equal(result.done + result.cancelled, 400);
        assert.ok(result.cancelled > 100);
        await idle(daemon);
    } finally {
        assert.deepEqual(await daemon.stop(), { code: 0, signal: null });
    }
});

test('plain requests by autocannon: every answer is 200', async () => {
    const daemon = await start();
    try {
        const result = await autocannon({
            url: `${daemon.url}/v1/completions`, method: 'POST', connections: 8, amount: 200,
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify({ prompt: 'The old house', max_tokens: 2, temperature: 0 }),
        });
        assert.equal(result['2xx'], 200);
        assert.equal(result.non2xx + result.errors + result.timeouts, 0);
        await idle(daemon);
    } finally {
        await daemon.stop();
    }
});
