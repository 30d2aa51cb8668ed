/* http_test.mjs: the daemon's HTTP side, over raw sockets: framing, limits,
 * deadlines, pipelining, disconnects, hostile JSON.  One daemon for all. */
import test, { before, after } from 'node:test';
import assert from 'node:assert/strict';
import net from 'node:net';
import { start, idle, postJson, getJson, rss, sleep, until } from './daemon.mjs';

let d;
before(async () => {
    d = await start({ args: ['--dtype', 'float32', '--max-num-batched-tokens', '128', '--max-body-bytes', '1M',
        '--max-total-body-bytes', '4M',
        '--max-header-bytes', '16K', '--http-header-timeout', '1.5', '--http-body-timeout', '2',
        '--stream-buffer-bytes', '64K', '--http-write-timeout', '2', '--served-model-name', 'tales'] });
});
after(async () => {
    const end = await d.stop();
    assert.deepEqual({ code: end.code, signal: end.signal }, { code: 0, signal: null }, d.log());
});

/* A raw connection: what came back so far, and whether the server closed. */
function raw(options = {}) {
    const s = net.connect({ port: d.port, host: '127.0.0.1', allowHalfOpen: true, ...options });
    s.text = '';
    s.setEncoding('latin1');
    s.on('data', (chunk) => { s.text += chunk; });
    s.closed_ = new Promise((resolve) => { s.on('end', resolve).on('close', resolve).on('error', resolve); });
    s.saw = (pattern, limit = 5000) => until(() => s.text.match(pattern), limit);
    return s;
}

/* Send bytes, half-close never, collect until the server closes or limit. */
async function exchange(bytes, { limit = 4000 } = {}) {
    const s = raw();
    s.write(bytes);
    await Promise.race([s.closed_, sleep(limit)]);
    s.destroy();
    return s.text;
}

const statuses = (text) => [...text.matchAll(/HTTP\/1\.1 (\d+) /g)].map((m) => Number(m[1]));
const body = JSON.stringify({ prompt: 'Once', max_tokens: 2, temperature: 0 });
const post = (path, b, more = '') =>
    `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n${more}Content-Length: ${Buffer.byteLength(b)}\r\n\r\n${b}`;
const alive = async () => {
    const r = await postJson(`${d.url}/v1/completions`, { prompt: 'Once upon a time', max_tokens: 4, temperature: 0 });
    assert.equal(r.status, 200);
    const j = await r.json();
    assert.equal(j.choices[0].text, ' there was a king');
    await idle(d);
};

test('one answer, keep-alive, several requests on a connection', async () => {
    const s = raw();
    for (let i = 1; i <= 3; i++) {
        s.write(post('/v1/completions', body));
        await until(() => statuses(s.text).length === i && s.text.endsWith('}'));
    }
    assert.deepEqual(statuses(s.text), [200, 200, 200]);
    s.destroy();
});

test('pipelined requests are answered in order, one at a time', async () => {
    const s = raw();
    s.write(post('/v1/completions', body) + 'GET /version HTTP/1.1\r\nHost: x\r\n\r\n'
        + post('/v1/completions', '{"prompt":1}') + 'GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    await s.closed_;
    assert.deepEqual(statuses(s.text), [200, 200, 400, 404]);
    assert.match(s.text, /text_completion[\s\S]*"version"/);
});

test('a request cut at every byte parses the same', async () => {
    const text = post('/v1/completions', body);
    const s = raw();
    s.setNoDelay(true);
    for (const c of text) {
        s.write(c);
        await new Promise(setImmediate);
    }
    await s.saw(/"finish_reason":"length"/);
    s.destroy();
});

test('chunked bodies', async () => {
    const s = raw();
    s.write('POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n');
    for (let i = 0; i < body.length; i += 5) {
        const part = body.slice(i, i + 5);
        s.write(`${part.length.toString(16)};ext=1\r\n${part}\r\n`);
    }
    s.write('0\r\n\r\n');
    await s.saw(/"finish_reason":"length"/);
    s.destroy();
});

test('HEAD, OPTIONS, unknown method and path', async () => {
    const body = await (await fetch(`${d.url}/health`)).text();
    let t = await exchange('HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    assert.match(t, /^HTTP\/1\.1 200/);
    assert.ok(t.includes(`Content-Length: ${Buffer.byteLength(body)}\r\n`), t);
    assert.ok(t.endsWith('\r\n\r\n'));
    t = await exchange('OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    assert.match(t, /^HTTP\/1\.1 204/);
    assert.match(t, /Allow: POST, OPTIONS/);
    t = await exchange('PUT /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    assert.match(t, /^HTTP\/1\.1 405/);
    t = await exchange('GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    assert.match(t, /^HTTP\/1\.1 404/);
    t = await exchange('BREW /health HTTP/1.1\r\nHost: x\r\n\r\n');
    assert.match(t, /^HTTP\/1\.1 (501|400)/);
});

test('HTTP/1.0 gets a close and no chunks', async () => {
    const b = JSON.stringify({ prompt: 'Once', max_tokens: 3, temperature: 0, stream: true });
    const t = await exchange(`POST /v1/completions HTTP/1.0\r\nContent-Length: ${b.length}\r\n\r\n${b}`);
    assert.match(t, /^HTTP\/1\.1 200/);
    assert.doesNotMatch(t, /Transfer-Encoding/);
    assert.match(t, /data: \[DONE\]\n\n$/);
});

test('Expect: 100-continue', async () => {
    const s = raw();
    s.write(`POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: ${body.length}\r\n\r\n`);
    await s.saw(/^HTTP\/1\.1 100 Continue\r\n\r\n$/);
    s.write(body);
    await s.saw(/"finish_reason":"length"/);
    s.destroy();
    const t = await exchange('POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n');
    assert.deepEqual(statuses(t), [404]);
    const u = await exchange('POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: magic\r\nContent-Length: 5\r\n\r\n');
    assert.deepEqual(statuses(u), [417]);
});

test('HT-1: two framings are refused once and the tail is never answered', async () => {
    const tail = 'GET /version HTTP/1.1\r\nHost: x\r\n\r\n';
    const cases = {
        'CL then TE': 'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'TE then CL': 'Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n',
        'two unequal CLs': 'Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello',
        'two equal CLs': 'Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello',
        'CL: +5': 'Content-Length: +5\r\n\r\nhello',
        'CL: 5, 5': 'Content-Length: 5, 5\r\n\r\nhello',
        'CL: 0x5': 'Content-Length: 0x5\r\n\r\nhello',
        'CL: -1': 'Content-Length: -1\r\n\r\n',
        'CL empty': 'Content-Length: \r\n\r\n',
        'TE with a space before the colon': 'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n',
        'CL with a space before the colon': 'Content-Length : 5\r\n\r\nhello',
        'chunked, identity': 'Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n',
        'identity': 'Transfer-Encoding: identity\r\n\r\n',
        'gzip, chunked': 'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
        'chunked twice': 'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'xchunked': 'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
        'folded TE': 'X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
        'bare LF then space': 'X: y\n Content-Length: 5\r\n\r\nhello',
        'bare LF line': 'X: y\nContent-Length: 5\r\n\r\nhello',
        'CR alone': 'X: y\rContent-Length: 5\r\n\r\nhello',
        'NUL in a value': 'X: a\0b\r\n\r\n',
        'chunk size with sign': 'Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n',
        'chunk size with 0x': 'Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n',
        'chunk size too large': 'Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n',
        'chunk without CRLF': 'Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX0\r\n\r\n',
        'chunk ended by LF': 'Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n',
        'trailers': 'Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n',
        'two hosts': 'Host: y\r\n\r\n',
        'tab in a name': 'X\ty: z\r\n\r\n',
    };
    for (const [name, rest] of Object.entries(cases)) {
        const t = await exchange(`POST /v1/completions HTTP/1.1\r\nHost: x\r\n${rest}${tail}`, { limit: 3000 });
        const seen = statuses(t);
        assert.equal(seen.length, 1, `${name}: ${t}`);
        assert.ok([400, 413, 501].includes(seen[0]), `${name}: ${seen}`);
        assert.doesNotMatch(t, /"version"/, name);
        assert.match(t, /Connection: close/, name);
    }
    assert.deepEqual(statuses(await exchange(`GET /version HTTP/1.1\r\n\r\n${tail}`)), [400]);
    await alive();
});

test('bodies of many connections share their memory', async () => {
    const head = (n) => `POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${n}\r\n\r\n`;
    const many = Array.from({ length: 4 }, () => raw());
    await Promise.all(many.map((s) => new Promise((done) => s.write(head(1048576) + ' '.repeat(1040000), done))));
    /* Their bytes may still be under way. */
    const refused = await until(async () => {
        const text = await exchange(head(900000) + ' '.repeat(10), { limit: 200 });
        return statuses(text)[0] === 503 ? text : null;
    }, 1500);
    assert.match(refused, /\r\nRetry-After: \d/);
    assert.match(refused, /fill the memory for bodies/);
    for (const s of many) s.destroy();
    await until(async () => (await postJson(`${d.url}/v1/completions`, body + ' '.repeat(900000))).status === 200, 2000);
});

test('HT-2: endless heads and big bodies end at the cap', async () => {
    const before = rss(d.pid);
    const pour = async (first, piece, count) => {
        const s = raw();
        let sent = 0;
        s.on('error', () => {});
        s.write(first);
        let over = false;
        s.closed_.then(() => { over = true; });
        for (let i = 0; i < count && !over; i++) {
            if (!s.write(piece)) await Promise.race([new Promise((r) => s.once('drain', r)), s.closed_]);
            /* A write that completes at once drains without a look at the socket:
             * a client that never reads cannot see the answer. */
            await new Promise(setImmediate);
            sent += piece.length;
        }
        await Promise.race([s.closed_, sleep(4000)]);
        s.destroy();
        return { text: s.text, sent };
    };
    let r = await pour('GET /version HTTP/1.1\r\nHost: x\r\nX: ', 'a'.repeat(65536), 16384);
    assert.deepEqual(statuses(r.text), [431]);
    r = await pour('GET /version HTTP/1.1\r\nHost: x\r\n', 'A: b\r\n'.repeat(10000), 100);
    assert.deepEqual(statuses(r.text), [431]);
    r = await pour('GET /', 'a'.repeat(65536), 1000);
    assert.deepEqual(statuses(r.text), [431]);
    r = await pour('POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n', 'a'.repeat(65536), 16);
    assert.deepEqual(statuses(r.text), [413]);
    r = await pour('POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n', 'a', 1);
    assert.ok([400, 413].includes(statuses(r.text)[0]));
    r = await pour('POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n',
        `10000\r\n${'a'.repeat(65536)}\r\n`, 400);
    assert.deepEqual(statuses(r.text), [413]);
    r = await pour('POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;',
        'x'.repeat(65536), 1000);
    assert.ok([400, 413, 431].includes(statuses(r.text)[0]), r.text);
    if (!process.env.QUIRED?.includes('debug'))
        assert.ok(rss(d.pid) - before < 2 * 1024 * 1024 + 4 * 1024 * 1024, `${rss(d.pid) - before}`);
    await alive();
});

test('HT-4: an absolute deadline closes drip feeds; a stream beside lives on', async () => {
    const stream = raw();
    stream.write(post('/v1/completions', JSON.stringify({ prompt: 'Once upon a time', max_tokens: 1200, ignore_eos: true, stream: true })));
    const drips = [];
    for (let i = 0; i < 100; i++) {
        const s = raw();
        s.on('error', () => {});
        s.write(i % 2 ? 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n' : 'GET /');
        const began = Date.now();
        const timer = setInterval(() => s.write('a'), 200);
        drips.push(s.closed_.then(() => {
            clearInterval(timer);
            s.destroy();
            return { ms: Date.now() - began, status: statuses(s.text)[0] };
        }));
    }
    for (const { ms, status } of await Promise.all(drips)) {
        assert.ok(ms < 6000, `${ms}`);
        assert.equal(status, 408);
    }
    await stream.saw(/data: \[DONE\]/, 60000);
    assert.equal([...stream.text.matchAll(/"finish_reason":"length"/g)].length, 1);
    stream.destroy();
    await alive();
});

test('JS-1: depth, truncation, trailing garbage', async () => {
    const bad = ['['.repeat(100000), '{"a":'.repeat(100000), '{"prompt":"x" "max_tokens":1}', body + 'x', body + '{}',
        '', ' ', 'null', '[]', '"x"', '\ufeff' + body];
    for (let i = 0; i < body.length; i++) bad.push(body.slice(0, i));
    for (const text of bad) {
        const r = await postJson(`${d.url}/v1/completions`, text);
        assert.equal(r.status, 400, text.slice(0, 60));
        const j = await r.json();
        assert.equal(j.error.type, 'invalid_request_error');
    }
    await alive();
});

test('JS-2: wrong types are 400 and name the field; null is the default', async () => {
    const fields = ['max_tokens', 'temperature', 'top_p', 'top_k', 'min_p', 'n', 'seed', 'stream', 'stop', 'echo', 'logprobs',
        'presence_penalty', 'frequency_penalty', 'repetition_penalty', 'logit_bias', 'stop_token_ids', 'min_tokens', 'ignore_eos',
        'priority', 'cache_salt', 'return_token_ids', 'include_stop_str_in_output', 'skip_special_tokens', 'stream_options',
        'prompt_logprobs', 'best_of', 'user'];
    for (const f of fields) {
        const ok = await postJson(`${d.url}/v1/completions`, { prompt: 'Once', max_tokens: 1, [f]: null });
        assert.equal(ok.status, 200, `${f}: null: ${await ok.text()}`);
        let refused = 0;
        for (const v of [0.01, '16', true, [], {}, [[]], -1e300, '\u0000']) {
            const r = await postJson(`${d.url}/v1/completions`, { prompt: 'Once', max_tokens: 1, [f]: v });
            assert.ok(r.status === 200 || r.status === 400, `${f}: ${JSON.stringify(v)}: ${r.status}`);
            const j = await r.json().catch(() => ({}));
            if (r.status === 400) {
                refused++;
                assert.ok(String(j.error.param).startsWith(f), `${f}: ${JSON.stringify(j)}`);
            }
        }
        assert.ok(refused >= 4, `${f}: only ${refused} refused`);
    }
    for (const prompt of [null, 1, true, {}, [[1, 'a']], [-1], [99999], [1.5], [[]], []]) {
        const r = await postJson(`${d.url}/v1/completions`, { prompt, max_tokens: 1 });
        assert.equal(r.status, 400, JSON.stringify(prompt));
        await r.text();
    }
    await alive();
});

test('an unknown model is 404, no model is the served one', async () => {
    const r = await postJson(`${d.url}/v1/completions`, { model: 'gpt-5', prompt: 'x' });
    assert.equal(r.status, 404);
    assert.equal((await r.json()).error.param, 'model');
    assert.equal((await postJson(`${d.url}/v1/completions`, { model: 'tales', prompt: 'x', max_tokens: 1 })).status, 200);
    assert.equal((await fetch(`${d.url}/v1/models/tales`)).status, 200);
    assert.equal((await fetch(`${d.url}/v1/models/other`)).status, 404);
});

test('x-request-id is echoed, or made', async () => {
    let r = await fetch(`${d.url}/version`, { headers: { 'x-request-id': 'mine-1' } });
    assert.equal(r.headers.get('x-request-id'), 'mine-1');
    r = await fetch(`${d.url}/version`);
    assert.match(r.headers.get('x-request-id'), /^req-[0-9a-f]{24}$/);
    r = await fetch(`${d.url}/version`, { headers: { 'x-request-id': 'a b' } });
    assert.match(r.headers.get('x-request-id'), /^req-/);
});

const long = { prompt: 'Once upon a time', max_tokens: 2000, ignore_eos: true };

test('CA-1: a client that leaves is noticed in every phase', async () => {
    const request = (more) => post('/v1/completions', JSON.stringify({ ...long, ...more }));
    const leave = { fin: (s) => s.destroy(), rst: (s) => s.resetAndDestroy(), half: (s) => s.end() };
    for (const [name, go] of Object.entries(leave)) {
        let s = raw(); /* during the head, during the body */
        s.on('error', () => {});
        s.write('POST /v1/comp');
        await sleep(30);
        go(s);
        s = raw();
        s.on('error', () => {});
        s.write(request({}).slice(0, -5));
        await sleep(30);
        go(s);
        for (const stream of [false, true]) { /* during decode */
            s = raw();
            s.on('error', () => {});
            s.write(request({ stream, n: 2 }));
            await until(async () => (await getJson(`${d.url}/admin/cache`)).requests.running === 2);
            go(s);
            await idle(d, 1000).catch((e) => { throw new Error(`${name} stream=${stream}: ${e.message}`); });
        }
        s = raw(); /* during a long prefill */
        s.on('error', () => {});
        s.write(post('/v1/completions', JSON.stringify({ prompt: Array(2040).fill(7), max_tokens: 5 })));
        await sleep(5);
        go(s);
        await idle(d, 2000);
    }
    await alive();
});

test('CA-6: a reused client id names nothing', async () => {
    const get = (more) => postJson(`${d.url}/v1/completions`, { prompt: 'Once upon a time', temperature: 0, max_tokens: 40, ...more },
        { headers: { 'x-request-id': 'same' } });
    const first = new AbortController();
    const a = await postJson(`${d.url}/v1/completions`, { ...long, stream: true }, { headers: { 'x-request-id': 'same' }, signal: first.signal });
    assert.equal(a.status, 200);
    const second = get({});
    first.abort();
    const third = get({});
    const texts = await Promise.all([second, third].map(async (r) => (await (await r).json()).choices[0].text));
    assert.equal(texts[0], texts[1]);
    await alive();
});

test('admin: a live request is listed and can be cancelled; reset refuses while it runs', async () => {
    const r = await postJson(`${d.url}/v1/completions`, { ...long, stream: true });
    const reader = r.body.getReader();
    await reader.read();
    const list = await until(async () => {
        const { requests } = await getJson(`${d.url}/admin/requests`);
        return requests.length && requests[0].output_tokens > 0 && requests;
    });
    assert.equal(list.length, 1);
    assert.equal(list[0].phase, 'decode');
    const reset = await fetch(`${d.url}/admin/cache/reset`, { method: 'POST' });
    assert.equal(reset.status, 409);
    await reset.text();
    const gone = await fetch(`${d.url}/admin/requests/${list[0].id}`, { method: 'DELETE' });
    assert.deepEqual(await gone.json(), { cancelled: 1 });
    let text = '';
    for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += Buffer.from(value).toString();
    }
    assert.match(text, /data: \{"error":\{"message":"the request was cancelled by an operator"[\s\S]*data: \[DONE\]\n\n$/);
    await idle(d);
    const again = await fetch(`${d.url}/admin/cache/reset`, { method: 'POST' });
    assert.equal(again.status, 200);
    assert.equal((await getJson(`${d.url}/admin/cache`)).blocks.cached, 0);
    assert.equal((await fetch(`${d.url}/admin/requests/none`, { method: 'DELETE' })).status, 404);
});

test('without a key, /admin answers programs of this machine alone', async () => {
    for (const [headers, status] of [
        [{ Host: 'localhost:1' }, 200], [{ Host: '127.0.0.1' }, 200], [{ Host: 'x', Origin: 'http://evil.example' }, 403],
        [{ Host: 'rebound.example' }, 403], [{ Host: 'localhost', 'X-Forwarded-For': '10.0.0.1' }, 403]]) {
        const lines = Object.entries(headers).map(([k, v]) => `${k}: ${v}\r\n`).join('');
        const t = await exchange(`GET /admin/cache HTTP/1.1\r\n${lines}Connection: close\r\n\r\n`);
        assert.deepEqual(statuses(t), [status], lines);
    }
});

test('keys guard /v1 and /admin, not /health', async () => {
    const k = await start({ args: ['--api-key', 'sk-1,sk-2', '--admin-key', 'adm'] });
    const get = (path, key) => fetch(k.url + path, key ? { headers: { Authorization: `Bearer ${key}` } } : {}).then(async (r) => (await r.text(), r.status));
    assert.equal(await get('/v1/models'), 401);
    assert.equal(await get('/v1/models', 'sk-3'), 401);
    assert.equal(await get('/v1/models', 'sk-1'), 200);
    assert.equal(await get('/v1/models', 'sk-2'), 200);
    assert.equal(await get('/v1/models', 'adm'), 401);
    assert.equal(await get('/admin/cache', 'sk-1'), 401);
    assert.equal(await get('/admin/cache', 'adm'), 200);
    assert.equal(await get('/health'), 200);
    assert.equal((await fetch(`${k.url}/v1/models`, { method: 'OPTIONS' })).status, 204);
    assert.equal((await k.stop()).code, 0);
});

test('queue full is 429 with Retry-After', async () => {
    const q = await start({ args: ['--max-num-seqs', '1', '--max-num-queued-reqs', '2'] });
    const all = await Promise.all(Array.from({ length: 8 }, () => postJson(`${q.url}/v1/completions`, { prompt: 'Once', max_tokens: 200, ignore_eos: true })));
    const codes = all.map((r) => r.status);
    assert.ok(codes.includes(200) && codes.includes(429), codes.join());
    assert.ok(codes.every((c) => c === 200 || c === 429));
    assert.equal(all.find((r) => r.status === 429).headers.get('retry-after'), '1');
    await Promise.all(all.map((r) => r.text()));
    await idle(q);
    assert.equal((await q.stop()).code, 0);
});

test('SD-1: SIGTERM drains; new work is 503; the end is 0', async () => {
    const s = await start({ args: ['--dtype', 'float32', '--max-num-seqs', '4', '--shutdown-timeout', '60'] });
    const ask = { prompt: 'Once upon a time', temperature: 0, max_tokens: 400, ignore_eos: true };
    const reference = (await (await postJson(`${s.url}/v1/completions`, ask)).json()).choices[0].text;
    const work = Array.from({ length: 7 }, () => postJson(`${s.url}/v1/completions`, { ...ask, stream: true }));
    await until(async () => (await getJson(`${s.url}/admin/cache`)).requests.waiting === 3);
    s.kill('SIGTERM');
    await s.logged(/draining/);
    const late = await postJson(`${s.url}/v1/completions`, ask);
    assert.equal(late.status, 503);
    assert.equal(late.headers.get('retry-after'), '5');
    assert.equal((await fetch(`${s.url}/ready`)).status, 503);
    assert.equal((await fetch(`${s.url}/health`)).status, 200);
    for (const w of work) {
        const text = await (await w).text();
        const joined = [...text.matchAll(/^data: (\{.*\})$/gm)].map((m) => JSON.parse(m[1]).choices[0].text).join('');
        assert.equal(joined, reference);
        assert.match(text, /data: \[DONE\]\n\n$/);
    }
    assert.deepEqual(await s.exited, { code: 0, signal: null });
});

test('SD-1: the deadline cancels what is left, a second signal exits at once', async () => {
    let s = await start({ args: ['--shutdown-timeout', '0.5'] });
    let r = await postJson(`${s.url}/v1/completions`, { ...long, stream: true, n: 64 });
    s.kill('SIGTERM');
    assert.match(await r.text(), /shutting down[\s\S]*\[DONE\]/);
    assert.deepEqual(await s.exited, { code: 0, signal: null });

    s = await start();
    r = await postJson(`${s.url}/v1/completions`, { ...long, stream: true, n: 64 });
    s.kill('SIGTERM');
    await s.logged(/draining/);
    const began = Date.now();
    s.kill('SIGTERM');
    await s.exited;
    assert.ok(Date.now() - began < 500);
    await r.text().catch(() => {});
});

test('start-up: a bad flag, a bad model, a taken port', async () => {
    const fails = async (options, pattern, code) => {
        const s = await start({ ready: false, ...options });
        const end = await s.exited;
        assert.equal(end.code, code, s.log());
        assert.match(s.log(), pattern);
        assert.equal(s.log().trim().split('\n').filter((l) => l.startsWith('quired:')).length, 1);
    };
    await fails({ args: ['--max-num-seq', '4'] }, /--max-num-seq: unknown option; did you mean --max-num-seqs\?/, 2);
    await fails({ args: ['--max-num-seqs', 'many'] }, /--max-num-seqs: "many" is not a number/, 2);
    await fails({ model: '/nonexistent' }, /\/nonexistent/, 1);
    await fails({ args: ['--port', String(d.port)] }, /cannot listen on 127\.0\.0\.1 port/, 1);
    await fails({ args: ['--max-model-len', '2048', '--num-gpu-blocks-override', '24'] }, /at most 384 tokens fit/, 1);
});
