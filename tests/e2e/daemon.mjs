/* daemon.mjs: start and stop the real daemon for a test.
 *
 * The binary is $QUIRED (ctest sets it), else build/release/quired; the model
 * deploy/models/tales-7m unless told.  Each daemon listens on a port that the
 * kernel chose, on loopback. */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import path from 'node:path';
import fs from 'node:fs';

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
export const TALES = path.join(ROOT, 'deploy/models/tales-7m');
export const QUIRED = process.env.QUIRED
    ? path.resolve(ROOT, process.env.QUIRED) : path.join(ROOT, 'build/release/quired');

/* Sanitizers and ledger checks make this build many times slower: where a case's
 * full size would take minutes, it runs smaller here and whole on the others. */
export const SLOW_BUILD = /debug|tsan/.test(path.basename(path.dirname(QUIRED)));

/* Start a daemon and wait until it is ready.
 *   args     further command line options
 *   env      further environment
 *   model    model directory
 *   ready    false: return as soon as the process runs
 *   timeout  milliseconds to become ready
 * Returns { url, port, pid, child, log(), exited, stop(), kill(signal) }. */
export async function start({ args = [], env = {}, model = TALES, ready = true,
                              timeout = 60000 } = {}) {
    const child = spawn(QUIRED, ['--host', '127.0.0.1', '--port', '0', ...args, model],
                        { env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
    let text = '';
    const waiting = new Set();
    const more = (chunk) => {
        text += chunk;
        for (const look of waiting) look();
    };
    child.stdout.setEncoding('utf8').on('data', more);
    child.stderr.setEncoding('utf8').on('data', more);
    const exited = new Promise((resolve) => {
        child.on('exit', (code, signal) => {
            for (const look of waiting) look();
            resolve({ code, signal });
        });
        child.on('error', (error) => resolve({ code: -1, signal: null, error }));
    });
    const daemon = {
        child, exited, pid: child.pid, url: null, port: null,
        log: () => text,
        kill: (signal) => child.kill(signal),
        /* Resolve with the match once the log shows it; reject on exit or timeout. */
        logged(pattern, limit = timeout) {
            return new Promise((resolve, reject) => {
                const timer = setTimeout(() => {
                    waiting.delete(look);
                    reject(new Error(`no ${pattern} within ${limit} ms; log:\n${text}`));
                }, limit);
                const done = (finish, value) => {
                    waiting.delete(look);
                    clearTimeout(timer);
                    finish(value);
                };
                const look = () => {
                    const match = text.match(pattern);
                    if (match) done(resolve, match);
                    else if (child.exitCode !== null || child.signalCode !== null)
                        done(reject, new Error(`quired ended (${child.exitCode ?? child.signalCode}); log:\n${text}`));
                };
                waiting.add(look);
                look();
            });
        },
        /* SIGTERM, then wait; resolves with { code, signal }. */
        async stop(limit = 40000) {
            if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
            const timer = setTimeout(() => child.kill('SIGKILL'), limit);
            const end = await exited;
            clearTimeout(timer);
            return end;
        },
    };
    if (ready) {
        try {
            const match = await daemon.logged(/^ready: http:\/\/[^\s]*:(\d+)\s/m);
            daemon.port = Number(match[1]);
            daemon.url = `http://127.0.0.1:${daemon.port}`;
        } catch (error) {
            child.kill('SIGKILL');
            throw error;
        }
    }
    return daemon;
}

/* Resident memory of a process in bytes. */
export function rss(pid) {
    const match = fs.readFileSync(`/proc/${pid}/status`, 'utf8').match(/^VmRSS:\s+(\d+) kB/m);
    return Number(match[1]) * 1024;
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/* Poll until fn() is truthy; its value. */
export async function until(fn, limit = 10000, step = 20) {
    const end = Date.now() + limit;
    for (;;) {
        const value = await fn();
        if (value) return value;
        if (Date.now() > end) throw new Error(`not within ${limit} ms: ${fn}`);
        await sleep(step);
    }
}

export async function getJson(url, options) {
    const response = await fetch(url, options);
    return response.json();
}

export function postJson(url, body, options = {}) {
    return fetch(url, {
        method: 'POST',
        body: typeof body === 'string' ? body : JSON.stringify(body),
        ...options,
        headers: { 'Content-Type': 'application/json', ...options.headers },
    });
}

/* The ledger is exact and nothing runs: the state every test must end in. */
export async function idle(daemon, limit = 5000) {
    return until(async () => {
        const cache = await getJson(`${daemon.url}/admin/cache`);
        const { total, free, cached, held, resting } = cache.blocks;
        if (free + cached + held + resting !== total)
            throw new Error(`ledger does not sum: ${JSON.stringify(cache.blocks)}`);
        return held === 0 && resting === 0 && cache.requests.running === 0
            && cache.requests.waiting === 0 && cache;
    }, limit);
}
