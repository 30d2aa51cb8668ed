// wide.mjs: expected rows for random strings, from the reference library.
//
//   node wide.mjs TOKENIZER.json OUT_DIR [COUNT] [SEED]
//
// Writes OUT_DIR/texts.json and OUT_DIR/rows.json for tokenizer_conformance.
// Needs npm `tokenizers` where this is run (./wide installs it).
import { readFileSync, writeFileSync, mkdirSync } from "node:fs";
import path from "node:path";
import { load, rowOf } from "./make.mjs";

const [file, out, count = "20000", seed = "1"] = process.argv.slice(2);
if (!out) {
  console.error("usage: node wide.mjs TOKENIZER.json OUT_DIR [COUNT] [SEED]");
  process.exit(2);
}

// splitmix32: the same strings for the same seed everywhere.
let state = Number(seed) >>> 0;
function below(n) {
  state = (state + 0x9e3779b9) >>> 0;
  let z = state;
  z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
  z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
  return ((z ^ (z >>> 15)) >>> 0) % n;
}
const pick = (list) => list[below(list.length)];
const range = (lo, hi) => String.fromCodePoint(lo + below(hi - lo + 1));
const repeat = (f, most) => Array.from({ length: 1 + below(most) }, f).join("");

const words = ("the of and to in is that for was with as on be at by this had not are but from or have an they " +
  "which one you were all her she there would their we him been has when who will no more if out so up said " +
  "tokenizer attention unbelievable internationalization Übergröße naïve don't I'LL we'VE it's 'tis Ōsaka").split(" ");
const added = JSON.parse(readFileSync(file, "utf8")).added_tokens.map((t) => t.content).concat("<|no token|>");
const blocks = [[0x20, 0x7e], [0xa0, 0xff], [0x100, 0x24f], [0x250, 0x36f], [0x370, 0x3ff], [0x400, 0x52f],
  [0x530, 0x6ff], [0x900, 0xdff], [0xe00, 0x10ff], [0x1100, 0x11ff], [0x1e00, 0x1fff], [0x2000, 0x22ff],
  [0x2300, 0x2bff], [0x3000, 0x30ff], [0x4e00, 0x9fff], [0xac00, 0xd7a3], [0xe000, 0xe010], [0xf900, 0xfdff],
  [0xfe00, 0xfeff], [0xff00, 0xffef], [0x10000, 0x103ff], [0x1d400, 0x1d7ff], [0x1f000, 0x1faff],
  [0x20000, 0x2a6df], [0xe0000, 0xe007f]];
const parts = [
  () => pick(words), () => " " + pick(words), () => " " + pick(words), () => pick(words).toUpperCase(),
  () => repeat(() => " ", 12), () => repeat(() => pick(["\n", "\r\n", "\t", " ", "\r", "\u000b", "\u00a0", "\u2003", "\u0085"]), 6),
  () => repeat(() => range(0x30, 0x39), 9), () => repeat(() => range(0x21, 0x2f), 5), () => repeat(() => range(0x20, 0x7e), 12),
  () => pick(["'s", "'S", "'ſ", "'ll", "'LL", "'Re", "’s", "'m", "'D", "'t", "'ve", "'lL", "''", "'"]),
  () => { const [lo, hi] = pick(blocks); return repeat(() => range(lo, hi), 8); },
  () => { const [lo, hi] = pick(blocks); return pick(words) + range(lo, hi) + pick(words); },
  () => range(0x61, 0x7a) + repeat(() => range(0x300, 0x36f), 4), () => repeat(() => pick(["中", "文", "字", "カ", "な", "ー", "한", "글"]), 10),
  () => pick(["👨‍👩‍👧‍👦", "🇩🇪", "❤️", "👍🏽", "😀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "①②③", "Ⅷ", "¾", "²", "٣٤", "१२"]),
  () => pick(added), () => pick(added) + pick(["", " ", "\n"]), () => { const a = pick(added); return a.slice(0, below(a.length) + 1); },
  () => pick(["▁", "▁▁the", "<0x0A>", "<0xE2>", "<unk>", "<s>", "</s>", "Ġ", "##", "\ufffd", "\u0000", "\u200b", "\ufeff", "\u180e", "ﬁ", "Å", "ẛ̣", "가", "각", "İ", "ß"]),
  () => repeat(() => pick(["a", "A", "1", "_", "-", ".", "/", "\\", "(", ")", "{", "}", "=", "+", "\n", " "]), 20),
  () => { let c = below(0x110000); return c >= 0xd800 && c < 0xe000 ? "?" : String.fromCodePoint(c); },
  () => pick(["aaaaaaaaaaaaaaaa", "abababababab", "=======", "------", "\n\n\n\n", "        ", "!!!!!", "。。。"]),
];

function wellFormed(s) {
  return s.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "?");
}

const tokenizer = load(file);
const texts = [], rows = [];
for (let i = 0; i < Number(count); i++) {
  const text = wellFormed(repeat(() => pick(parts)(), 1 + below(12)));
  rows.push(await rowOf(tokenizer, text));
  texts.push(text);
}
mkdirSync(out, { recursive: true });
writeFileSync(path.join(out, "texts.json"), JSON.stringify(texts));
writeFileSync(path.join(out, "rows.json"), JSON.stringify({ rows }));
