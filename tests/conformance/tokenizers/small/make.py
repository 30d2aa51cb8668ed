#!/usr/bin/env python3
"""Small tokenizers that between them use every step the reader supports.

    make.py OUT_DIR

writes OUT_DIR/NAME.json; ../wide.mjs gives the reference library's rows for
each.  The vocabularies are trained here, on the text below, so that nothing
of any published model is in the tree.
"""
import base64
import collections
import json
import os
import struct
import sys

TEXT = """The keeper of the old lighthouse counted the ships that came in from the sea every evening, and wrote
their names into a book. She had done so for thirty years. "Who reads it?" asked the boy. "Nobody yet," she said;
"but the book doesn't know that, and it's not the book's business." He laughed, and counted with her: one, two,
three, 12, 345, 6789. Café, naïve, Übergröße, straße, ÎLE, Ōsaka. Привет, мир! Γειά σου. 你好，世界。日本語のテキスト。
한국어 문장입니다. The tokenizer tokenizes tokens; unbelievable internationalization, attention attention.
for (int i = 0; i < n; ++i) { sum += a[i]; }   x = y;
"""
MARK = "\u2581"


def byte_chars():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


BYTES = byte_chars()


def train(words, alphabet, n_merges):
    """Plain BPE: (vocab list, merges)."""
    words = [list(w) for w in words]
    vocab, merges = list(alphabet), []
    for _ in range(n_merges):
        count = collections.Counter()
        for w in words:
            for a, b in zip(w, w[1:]):
                count[a, b] += 1
        if not count:
            break
        (a, b), k = max(count.items(), key=lambda kv: (kv[1], kv[0]))
        if k < 2:
            break
        merges.append((a, b))
        if a + b not in vocab:
            vocab.append(a + b)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if w[i] == a and w[i + 1] == b:
                    w[i : i + 2] = [a + b]
                i += 1
    return vocab, merges


def token(i, content, special=True, **kw):
    t = {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": special}
    t.update(kw)
    return t


def document(model, added=(), normalizer=None, pre=None, post=None, decoder=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added),
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post, "decoder": decoder,
            "model": model}


def bpe(vocab, merges, lists=False, **kw):
    m = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
         "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
         "vocab": {t: i for i, t in enumerate(vocab)},
         "merges": [list(p) if lists else " ".join(p) for p in merges]}
    m.update(kw)
    return m


def byte_level_model(**kw):
    words = ["".join(BYTES[b] for b in w.encode()) for w in (" " + TEXT).replace(" ", "\0 ").split("\0")]
    vocab, merges = train(words, [BYTES[b] for b in range(256)], 300)
    return bpe(vocab, merges, **kw)


BYTE_TOKENS = ["<0x%02X>" % b for b in range(256)]


def sp_words(split=True):
    text = MARK + TEXT.replace(" ", MARK)
    return [MARK + w for w in text.split(MARK)] if split else [text]


def sp_model(byte_fallback=True, alphabet=None, **kw):
    alphabet = alphabet or sorted(set(TEXT.replace(" ", "")) | {MARK})
    head = ["<unk>", "<s>", "</s>"] + (BYTE_TOKENS if byte_fallback else [])
    vocab, merges = train(sp_words(), head + alphabet, 300)
    return bpe(vocab, merges, unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True, **kw)


def unigram_model(byte_fallback=False, unk=0):
    count = collections.Counter()
    for w in sp_words():
        for i in range(len(w)):
            for j in range(i + 1, min(len(w), i + 8) + 1):
                count[w[i:j]] += 1
    pieces = [p for p, k in count.items() if k >= 2 or len(p) == 1]
    pieces.sort(key=lambda p: (-count[p] * len(p), p))
    pieces = [p for p in pieces if len(p) == 1][:150] + [p for p in pieces if len(p) > 1][:500]
    vocab = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
    if byte_fallback:
        vocab += [[t, -12.0] for t in BYTE_TOKENS]
    vocab += [[p, round(-10.0 + min(8.0, count[p] * len(p) / 20) - 0.001 * i, 6)] for i, p in enumerate(pieces)]
    return {"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": byte_fallback}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False):
    kind = "Regex" if pattern.startswith("re:") else "String"
    return {"type": "Split", "pattern": {kind: pattern.removeprefix("re:")}, "behavior": behavior, "invert": invert}


def seq(key, *items):
    return {"type": "Sequence", key: list(items)}


def template(before, after, ids):
    piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    single = [piece(t) for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(t) for t in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ids.items()}}


def charsmap():
    """A compiled SentencePiece map by hand: a few replacements in a double array."""
    rules = {"\u2160": "I", "\u00bd": "1/2", "\uff21": "A", "\u0133": "ij", "e\u0301": "\u00e9", "\t": " "}
    blob, where = b"", {}
    for k, v in rules.items():
        where[k.encode()] = len(blob)
        blob += v.encode() + b"\0"
    units = {0: 0}                      # position -> value (base is set below)
    used, size = {0}, 4096

    def children(prefix):
        return sorted({k[len(prefix)] for k in where if k.startswith(prefix) and len(k) > len(prefix)})

    def place(pos, prefix):
        kids = children(prefix)
        leaf = prefix in where
        base = 256                      # multiples of 256: offsets fit, bytes never collide
        while any((base ^ c) in used for c in kids + ([0] if leaf else [])):
            base += 256
        offset = base ^ pos
        assert offset < 1 << 21
        units[pos] = units.get(pos, 0) | (offset << 10) | (0x100 if leaf else 0)
        if leaf:
            used.add(base)
            units[base] = where[prefix] | 0x80000000
        for c in kids:
            used.add(base ^ c)
            units[base ^ c] = c
        for c in kids:
            place(base ^ c, prefix + bytes([c]))

    place(0, b"")
    n = (max(units) | 255) + 1
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(n))
    return base64.b64encode(struct.pack("<I", len(array)) + array + blob).decode()


def all_documents():
    sp_decoder = seq("decoders", {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                     {"type": "ByteFallback"}, {"type": "Fuse"},
                     {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    sp_normalizer = seq("normalizers", {"type": "Prepend", "prepend": MARK},
                        {"type": "Replace", "pattern": {"String": " "}, "content": MARK})
    sp_added = [token(0, "<unk>"), token(1, "<s>"), token(2, "</s>")]
    meta = lambda scheme, cut=True: {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}
    byte = byte_level_model()
    n = len(byte["vocab"])
    specials = [token(n, "<|end|>"), token(n + 1, "<think>", special=False),
                token(n + 2, "[L]", lstrip=True), token(n + 3, "[R]", rstrip=True),
                token(n + 4, "the", special=False, single_word=True), token(n + 5, "<|LOUD|>", special=False, normalized=True)]
    d = {}
    d["gpt2"] = document(byte, specials, pre=byte_level(True), post=byte_level(), decoder=byte_level())
    d["gpt2_lists"] = document(byte_level_model(lists=True, ignore_merges=True), specials,
                               normalizer=seq("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}),
                               pre=byte_level(), post=template(["<|end|>"], ["<|end|>"], {"<|end|>": n}),
                               decoder=byte_level())
    d["falcon_like"] = document(byte, specials,
                                pre=seq("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                                        {"type": "Digits", "individual_digits": False}, split("re:[0-9][0-9][0-9]")),
                                decoder=byte_level())
    d["code_digits"] = document(byte, specials, normalizer={"type": "NFC"},
                                pre=seq("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()),
                                decoder=byte_level())
    d["behaviours"] = document(byte, specials, normalizer={"type": "NFD"},
                               pre=seq("pretokenizers", split("re:\\s+", "MergedWithNext"), split("re:[aeiou]+", "MergedWithPrevious"),
                                       split("re:\\p{N}{1,2}+", "Contiguous"), split("-", "Removed"),
                                       split("re:[\\p{L}&&[^\\p{Han}]]+", "Isolated", True), byte_level(False, False)),
                               decoder=byte_level())
    d["words"] = document(byte, specials, normalizer=seq("normalizers", {"type": "NFKD"}, {"type": "Strip", "strip_left": True, "strip_right": True}),
                          pre=seq("pretokenizers", {"type": "Whitespace"}, byte_level(False, False)), decoder=byte_level())
    d["words_split"] = document(byte, specials,
                                pre=seq("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "CharDelimiterSplit", "delimiter": "e"},
                                        {"type": "FixedLength", "length": 4}, byte_level(True, False)), decoder=byte_level())
    d["bert_like"] = document(byte, specials, pre=seq("pretokenizers", {"type": "BertPreTokenizer"}, byte_level(False, False)),
                              post={"type": "RobertaProcessing", "sep": ["<|end|>", n], "cls": ["<think>", n + 1],
                                    "trim_offsets": True, "add_prefix_space": True}, decoder=byte_level())
    d["byte_normalizer"] = document(byte, specials, normalizer={"type": "ByteLevel"}, pre=split("re:\u0120?\\S{1,6}"), decoder=byte_level())
    d["llama2"] = document(sp_model(), sp_added, normalizer=sp_normalizer,
                           post=template(["<s>"], [], {"<s>": 1}), decoder=sp_decoder)
    d["mistral"] = document(sp_model(lists=True), sp_added, pre=meta("first", False),
                            post={"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}, decoder=sp_decoder)
    d["metaspace"] = document(sp_model(), sp_added, pre=meta("always"), decoder=meta("always"))
    d["metaspace_never"] = document(sp_model(byte_fallback=False), sp_added, pre=meta("never"), decoder=meta("never"))
    d["fused_unknown"] = document(sp_model(byte_fallback=False, alphabet=sorted(set("abcdefghijklmnopqrst" + MARK) | set(TEXT) - {" "})), sp_added,
                                  normalizer={"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": MARK})
    d["no_unknown"] = document(dict(sp_model(byte_fallback=False), unk_token=None), [], pre=meta("always"))
    d["single_unknown"] = document(dict(sp_model(byte_fallback=False), fuse_unk=False), sp_added, pre=meta("first"),
                                   decoder=seq("decoders", {"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "[\u2581x]"}, "content": "_"}))
    d["unigram"] = document(unigram_model(), sp_added,
                            normalizer=seq("normalizers", {"type": "Precompiled", "precompiled_charsmap": charsmap()},
                                           {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
                            pre=meta("always"), post=template([], ["</s>"], {"</s>": 2}), decoder=meta("always"))
    d["unigram_bytes"] = document(unigram_model(True), sp_added, normalizer=seq("normalizers", {"type": "Nmt"}, {"type": "NFKC"}),
                                  pre=meta("first"), decoder=sp_decoder)
    words = TEXT.split()
    letters = sorted(set("".join(words)))
    vocab, merges = train([list(w[:-1]) + [w[-1] + "</w>"] for w in words],
                          ["<unk>"] + letters + [c + "</w>" for c in letters], 200)
    d["end_of_word"] = document(bpe(vocab, merges, unk_token="<unk>", end_of_word_suffix="</w>"),
                                pre={"type": "WhitespaceSplit"}, decoder={"type": "BPEDecoder", "suffix": "</w>"})
    vocab, merges = ["<unk>"] + letters + ["##" + c for c in letters] + ["th", "the", "##er", "##ing"], \
        [("t", "##h"), ("th", "##e"), ("##e", "##r"), ("##in", "##g")]
    vocab.append("##in")
    merges.insert(3, ("##i", "##n"))
    d["continuing"] = document(bpe(vocab, merges, unk_token="<unk>", continuing_subword_prefix="##"),
                               pre={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    d["ctc"] = document(sp_model(), sp_added, pre=meta("always"),
                        decoder={"type": "CTC", "pad_token": "e", "word_delimiter_token": MARK, "cleanup": True})
    d["strip_both"] = document(sp_model(), sp_added, pre=meta("always"),
                               decoder=seq("decoders", {"type": "Strip", "content": "e", "start": 0, "stop": 1},
                                           {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                                           {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}))
    return d


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name, doc in all_documents().items():
        with open(os.path.join(out, name + ".json"), "w", encoding="utf8") as f:
            json.dump(doc, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")


if __name__ == "__main__":
    main()
