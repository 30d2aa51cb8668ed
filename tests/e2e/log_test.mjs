/* log_test.mjs: what --log-level shows of a daemon at work, and how one that cannot
 * load its model ends. */
import test from 'node:test';
import assert from 'node:assert/strict';
import { start, idle, postJson } from './daemon.mjs';

async function serveOne(level) {
    const d = await start({ args: ['--dtype', 'float32', '--log-level', level, '--log-format', 'json'] });
    const r = await postJson(`${d.url}/v1/completions`, { prompt: 'Once upon a time', max_tokens: 4, temperature: 0 });
    assert.equal(r.status, 200);
    await idle(d);
    const end = await d.stop();
    assert.equal(end.code, 0, d.log());
    return d.log().split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
}

test('debug shows kernels, connections, requests and steps', async () => {
    const lines = await serveOne('debug');
    const debug = lines.filter((line) => line.level === 'debug').map((line) => line.message);
    for (const pattern of [/^computes in float32 on cpu; matrices by \w+; attention: /, /^connection \d+ opened, \d+ open$/,
        /^connection \d+ closed, \d+ open$/, /^cmpl-\w+ \(req-\w+\): body of \d+ bytes, 1 prompts of \d+ tokens, 1 choices, prepared /,
        /^cmpl-\w+: first token after [\d.]+ ms; 0 tokens of its prompt were cached$/, /^steps: \d+, \d+ prompt tokens /])
        assert.ok(debug.some((message) => pattern.test(message)), `${pattern} in\n${debug.join('\n')}`);
    /* Each connection is said to open once and to close once, however many requests it carried. */
    const numbers = (word) => debug.map((m) => new RegExp(`^connection (\\d+) ${word}, `).exec(m)?.[1]).filter(Boolean);
    const opened = numbers('opened');
    assert.deepEqual(numbers('closed').sort(), opened.slice().sort());
    assert.equal(new Set(opened).size, opened.length);
    assert.ok(lines.some((line) => line.level === 'info' && line.message === 'request'));
});

test('info shows none of that', async () => {
    const lines = await serveOne('info');
    assert.equal(lines.filter((line) => line.level === 'debug').length, 0);
    assert.ok(lines.some((line) => line.message === 'request'));
});

test('a model that cannot be loaded ends the daemon with 1 and a message', async () => {
    const d = await start({ model: '/nonexistent/model', ready: false });
    const end = await d.exited;
    assert.deepEqual({ code: end.code, signal: end.signal }, { code: 1, signal: null });
    assert.match(d.log(), /^quired: .*\/nonexistent\/model/m);
});
