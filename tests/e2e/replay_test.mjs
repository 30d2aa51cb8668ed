/* replay_test.mjs: sequences of the simulator, replayed through the real daemon:
 * prefix caching on (with a pool that must evict and preempt) and off give the
 * same tokens. */
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { start, idle, QUIRED } from './daemon.mjs';
import { complete, cachedTokens } from './requests.mjs';

const SIM = path.join(path.dirname(QUIRED), 'tests/sim');
const AT_ONCE = 12;

/* The simulator's requests in order of arrival, ids folded into the vocabulary. */
function trace(requests, seed) {
    const text = execFileSync(SIM, ['--trace', 'chat', '--requests', String(requests), '--dump',
                                    '--tenants', '4', '--seed', String(seed)],
                              { encoding: 'utf8', maxBuffer: 1 << 28 });
    return text.split('\n').filter((line) => line.startsWith('{')).map((line) => {
        const { prompt, max_tokens } = JSON.parse(line);
        return { prompt: prompt.map((id) => 5 + id % 4000), max_tokens: Math.min(max_tokens, 32) };
    });
}

/* All requests, AT_ONCE in flight, started in order. */
async function replay(args, requests) {
    const daemon = await start({ args: ['--dtype', 'float32', ...args] });
    try {
        const ids = [];
        let next = 0, cached = 0;
        const worker = async () => {
            while (next < requests.length) {
                const i = next++;
                const reply = await complete(daemon, requests[i]);
                ids[i] = reply.choices[0].token_ids;
                cached += cachedTokens(reply);
            }
        };
        await Promise.all(Array.from({ length: AT_ONCE }, worker));
        await idle(daemon);
        return { ids, cached };
    } finally {
        await daemon.stop();
    }
}

for (const seed of [5, 6]) {
    test(`chat trace, seed ${seed}: caching on equals caching off`, async () => {
        const requests = trace(24, seed).filter(({ prompt }) => prompt.length < 2000);
        assert.ok(requests.length >= 20);
        const off = await replay(['--no-enable-prefix-caching'], requests);
        const on = await replay(['--num-gpu-blocks-override', '400'], requests);
        assert.deepEqual(on.ids, off.ids);
        assert.equal(off.cached, 0);
        assert.ok(on.cached > 0, 'the trace shares prefixes');
    });
}
