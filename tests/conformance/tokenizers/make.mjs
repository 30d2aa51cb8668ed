// make.mjs: what the reference tokenizer library makes of given texts.
//
//   node make.mjs TOKENIZER.json TEXTS.json ROWS.json            write ROWS.json
//   node make.mjs --check TOKENIZER.json TEXTS.json ROWS.json    compare instead
//
// TEXTS.json is a list of strings; a row holds the ids without and with special
// tokens and both decodings.  Run by hand, in a folder where npm `tokenizers` is
// installed (./fetch reference does so in build/npm); the rows in the tree were
// made with version 0.23.2.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.cwd(), "package.json"));

export function load(file) {
  return require("tokenizers").Tokenizer.fromFile(file);
}

export async function rowOf(tokenizer, text) {
  const ids = (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds();
  const special = (await tokenizer.encode(text, null, { addSpecialTokens: true })).getIds();
  return { ids, special, text: await tokenizer.decode(ids, false), plain: await tokenizer.decode(ids, true) };
}

async function main(args) {
  const check = args[0] === "--check";
  const [file, texts, out] = check ? args.slice(1) : args;
  if (!out) {
    console.error("usage: node make.mjs [--check] TOKENIZER.json TEXTS.json ROWS.json");
    return 2;
  }
  const tokenizer = load(file);
  const rows = [];
  for (const text of JSON.parse(readFileSync(texts, "utf8"))) rows.push(await rowOf(tokenizer, text));
  if (!check) {
    const library = `tokenizers ${require("tokenizers/package.json").version}`;
    writeFileSync(out, JSON.stringify({ library, rows }));
    return 0;
  }
  const want = JSON.parse(readFileSync(out, "utf8")).rows;
  const same = (a, b) => ["ids", "special", "text", "plain"].every((k) => JSON.stringify(a[k]) === JSON.stringify(b[k]));
  const bad = rows.filter((row, i) => !want[i] || !same(row, want[i])).length + Math.abs(want.length - rows.length);
  console.log(`${rows.length - bad} passed, ${bad} failed`);
  return bad ? 1 : 0;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) process.exit(await main(process.argv.slice(2)));
