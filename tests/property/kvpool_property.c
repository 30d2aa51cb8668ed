/* kvpool_property.c: the pool is memory with sharing, under random operations.
 *
 * cells[] stands for the slab; a sequence's oracle is a plain array.  A cell
 * holds a hash of the whole text up to its position, of the key domain and of
 * the group, so that a wrong share is seen even where tokens agree.  Blocks are
 * poisoned the moment they are handed out, and a step's reads are checked when
 * it ends: early reuse, ring slips, lost copies and bad sharing all show.
 * After every operation the ledger is checked and every visible position read.
 *
 *   kvpool_property [operations [seed]]     a failure prints both */
#include <stdio.h>

#include "kvpool/kvpool.h"
#include "support/kv_fixture.h"
#include "support/rng.h"

enum { SEQS = 8, TEXT = 420, STEPS = 2, BLOCKS = 160, GROUPS = 4, ROWS = SEQS, PINS = 3 };

struct access {
    int32_t slot;
    uint64_t value;
};

struct step {
    bool live, executed;
    uint64_t number;
    uint32_t n_rows, n_writes, n_reads, n_copies;
    struct {
        int seq;
        uint64_t generation;
        uint32_t n;
    } row[ROWS];
    struct access write[ROWS * GROUPS * TEXT], read[ROWS * GROUPS * TEXT];
    struct plan_copy copy[ROWS * GROUPS];
};

struct model_seq {
    bool open;
    seq_id id;
    uint64_t generation;
    struct kvpool_key key;
    int32_t text[TEXT];
    uint64_t expect[TEXT];                  /* of group 0 */
    uint32_t known, len, reserved, pending; /* pending: reserved, not yet launched */
    uint32_t told; /* tokens the pool knows: a fork's text agrees that far       */
    bool copying;  /* the part-filled block waits for its copy: not readable yet */
};

struct model_pin {
    bool set;
    uint32_t pin, n;
    uint64_t expires;
    struct kvpool_key key;
    int32_t text[TEXT];
};

struct world {
    struct rng r;
    struct kvpool *pool;
    struct kv_layout lay;
    struct kvpool_config cfg;
    uint64_t cells[BLOCKS * 16];
    struct model_seq seq[SEQS];
    struct step step[STEPS]; /* in order of launch */
    struct model_pin pin[PINS];
    uint64_t clock;
    uint64_t last_step, generation, poison;
};

static struct world w;
static uint64_t done_ops, start_seed;
static uint64_t n_hits, n_copied, n_refused, n_forks, n_aborts, n_in_flight_closes, n_pins;

#define REQUIRE(c)                                                                                 \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n  at operation %llu of seed %llu\n", __FILE__, __LINE__,   \
                    #c, (unsigned long long)done_ops, (unsigned long long)start_seed);             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t mix(uint64_t a, uint64_t b)
{
    struct rng r = { a ^ b * 0xD6E8FEB86659FD93u };
    return rng_next(&r);
}

static uint64_t value_of(const struct model_seq *m, uint32_t g, uint32_t pos)
{
    return m->expect[pos] ^ (uint64_t)g << 56;
}

/* Extend the text to n tokens.  Mostly blocks of one token repeated, so that
 * equal blocks often stand behind different prefixes. */
static void learn(struct model_seq *m, uint32_t n)
{
    for (; m->known < n; m->known++) {
        bool repeat = m->known % 16 != 0 && rng_below(&w.r, 200) != 0;
        m->text[m->known] = repeat ? m->text[m->known - 1] : (int32_t)rng_below(&w.r, 2);
    }
}

static void hash_text(struct model_seq *m, uint32_t from)
{
    uint64_t h = from > 0 ? m->expect[from - 1] : mix(m->key.salt, 77);
    for (uint32_t i = from; i < m->known; i++)
        m->expect[i] = h = mix(h, (uint64_t)m->text[i] + 3);
}

static int32_t slot_of(seq_id s, uint32_t g, uint32_t pos)
{
    uint32_t n;
    const blk_id *row = kvpool_table(w.pool, s, g, &n);
    REQUIRE(pos / w.lay.block_tokens < n);
    blk_id b = row[pos / w.lay.block_tokens];
    REQUIRE(b >= 0 && (uint32_t)b < w.cfg.n_blocks);
    return b * (int32_t)w.lay.block_tokens + (int32_t)(pos % w.lay.block_tokens);
}

static uint32_t first_visible(uint32_t g, uint32_t query)
{
    uint32_t window = w.lay.group[g].window;
    return window == 0 || query + 1 < window ? 0 : query + 1 - window;
}

static void poison(blk_id b)
{
    for (uint32_t i = 0; i < w.lay.block_tokens; i++)
        w.cells[(uint32_t)b * w.lay.block_tokens + i] = mix(~(uint64_t)0, ++w.poison);
}

/* ---- what must hold after every operation ------------------------------------- */

static void check_seq(const struct model_seq *m)
{
    uint32_t b = w.lay.block_tokens, held = 0;
    REQUIRE(kvpool_length(w.pool, m->id) == m->len);
    for (uint32_t g = 0; g < w.lay.n_groups; g++) {
        uint32_t n, low = first_visible(g, m->len) / b;
        const blk_id *row = kvpool_table(w.pool, m->id, g, &n);
        REQUIRE(n == (m->len + m->reserved + b - 1) / b);
        uint32_t mapped = 0;
        for (uint32_t i = 0; i < n; i++)
            mapped += row[i] != BLK_NONE;
        for (uint32_t i = n - mapped; i < n; i++)
            REQUIRE(row[i] != BLK_NONE); /* one run, at the end */
        REQUIRE(n - mapped <= low && low <= n - mapped + 1);
        held += mapped;
        uint32_t end = m->copying ? m->len / b * b : m->len;
        for (uint32_t pos = first_visible(g, m->len); pos < end; pos++)
            REQUIRE(w.cells[slot_of(m->id, g, pos)] == value_of(m, g, pos));
    }
    REQUIRE(kvpool_held(w.pool, m->id) == held);
}

static void check_world(void)
{
    struct kvpool_stats st;
    struct err e;
    if (kvpool_check(w.pool, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.message);
        REQUIRE(!"the ledger");
    }
    for (int i = 0; i < SEQS; i++)
        if (w.seq[i].open)
            check_seq(&w.seq[i]);
    for (int i = 0; i < PINS; i++) /* what is pinned is found, whatever happened */
        if (w.pin[i].set)
            REQUIRE(kvpool_peek(w.pool, w.pin[i].text, w.pin[i].n + 1, &w.pin[i].key) ==
                    w.pin[i].n);
    kvpool_stats(w.pool, &st);
    REQUIRE(st.n_free + st.n_cached + st.n_held + st.n_resting == st.n_blocks);
    REQUIRE(st.n_pinned <= w.cfg.pin_budget);
    REQUIRE(st.query_tokens == st.hit_tokens + st.miss_never + st.miss_evicted + st.miss_salt +
                                   st.miss_granularity + st.miss_window);
}

/* ---- operations ------------------------------------------------------------------ */

static struct model_seq *pick(bool open)
{
    uint32_t at = rng_below(&w.r, SEQS);
    for (uint32_t i = 0; i < SEQS; i++)
        if (w.seq[(at + i) % SEQS].open == open)
            return &w.seq[(at + i) % SEQS];
    return NULL;
}

/* A text that begins like another one, or like one of a few common texts. */
static void compose(struct model_seq *m)
{
    uint32_t n = 1 + rng_below(&w.r, w.cfg.max_seq_tokens - 20), like = 0;
    uint32_t theme = rng_below(&w.r, 3);
    const struct model_seq *other = pick(true);
    if (other != NULL && other != m && rng_below(&w.r, 2) == 0) {
        like = rng_below(&w.r, other->known + 1);
        like = like < n ? like : n;
        memcpy(m->text, other->text, like * sizeof *m->text);
        m->key = other->key;
    } else if (rng_below(&w.r, 4) != 0) {
        like = rng_below(&w.r, n + 1);
        for (uint32_t i = 0; i < like; i++)
            m->text[i] = (int32_t)(mix(theme, i / 16) & 1);
    }
    m->known = like;
    learn(m, n);
    hash_text(m, 0);
}

static void op_open(void)
{
    struct model_seq *m = pick(false);
    if (m == NULL)
        return;
    struct err e;
    uint32_t cached;
    *m = (struct model_seq){ .key = { .salt = rng_below(&w.r, 3) == 0 ? 1 + rng_below(&w.r, 2) : 0,
                                      .again = rng_below(&w.r, 4) == 0 } };
    compose(m);
    m->key.no_lookup = rng_below(&w.r, 10) == 0;
    uint32_t peeked = kvpool_peek(w.pool, m->text, m->known, &m->key);
    REQUIRE(kvpool_open(w.pool, m->text, m->known, &m->key, &m->id, &cached, &e) == ERR_OK);
    REQUIRE(cached == peeked && cached < m->known && cached % w.lay.block_tokens == 0);
    REQUIRE(!m->key.no_lookup || cached == 0);
    m->open = true;
    m->generation = ++w.generation;
    m->len = cached;
    m->told = m->known;
    n_hits += cached > 0;
}

static uint64_t idle(void)
{
    struct kvpool_stats st;
    kvpool_stats(w.pool, &st);
    return st.n_free + st.n_cached;
}

static bool in_flight(void)
{
    return w.step[0].live;
}

/* Reserve n for m, checking the refusal, the cost, the ring's bound; poison. */
static bool reserve(struct model_seq *m, uint32_t n)
{
    static blk_id before[GROUPS][TEXT / 16 + 2];
    struct kvpool_stats was, now;
    struct err e;
    uint32_t b = w.lay.block_tokens, cost = kvpool_reserve_cost(w.pool, m->id, n), cols;
    uint64_t had = idle();
    for (uint32_t g = 0; g < w.lay.n_groups; g++) {
        const blk_id *row = kvpool_table(w.pool, m->id, g, &cols);
        memcpy(before[g], row, cols * sizeof *row);
    }
    uint32_t old_cols = (m->len + m->reserved + b - 1) / b;
    kvpool_stats(w.pool, &was);
    enum err_code rc = kvpool_reserve(w.pool, m->id, n, &e);
    kvpool_stats(w.pool, &now);
    REQUIRE(rc == ERR_OK || rc == ERR_BUSY);
    REQUIRE((rc == ERR_OK) == (cost <= had));
    if (rc != ERR_OK) {
        REQUIRE(memcmp(&was, &now, sizeof was) == 0);
        n_refused++;
        return false;
    }
    REQUIRE(cost == 0 || idle() == had - cost);
    n_copied += now.copies - was.copies;
    bool alone = m->reserved == 0;
    m->copying = m->copying || now.copies > was.copies;
    m->reserved += n;
    m->pending = n;
    for (uint32_t g = 0; g < w.lay.n_groups; g++) {
        const blk_id *row = kvpool_table(w.pool, m->id, g, &cols);
        uint64_t ring = ((uint64_t)w.lay.group[g].window + n - 1 + b - 1) / b + 1, mapped = 0;
        for (uint32_t i = 0; i < cols; i++) {
            mapped += row[i] != BLK_NONE;
            if (i >= old_cols || (row[i] != before[g][i] && row[i] != BLK_NONE))
                poison(row[i]);
        }
        REQUIRE(w.lay.group[g].window == 0 || !alone || mapped <= ring);
    }
    return true;
}

/* Record what the step will write and read, by today's tables. */
static void record(struct step *s, struct model_seq *m)
{
    uint32_t from = m->len + m->reserved - m->pending, to = from + m->pending;
    for (uint32_t g = 0; g < w.lay.n_groups; g++) {
        for (uint32_t pos = from; pos < to; pos++)
            s->write[s->n_writes++] =
                (struct access){ slot_of(m->id, g, pos), value_of(m, g, pos) };
        for (uint32_t pos = first_visible(g, from); pos < to; pos++)
            s->read[s->n_reads++] = (struct access){ slot_of(m->id, g, pos), value_of(m, g, pos) };
    }
    s->row[s->n_rows].seq = (int)(m - w.seq);
    s->row[s->n_rows].generation = m->generation;
    s->row[s->n_rows++].n = m->pending;
    m->pending = 0;
}

static void op_reserve(void)
{
    struct model_seq *m = pick(true);
    if (m == NULL || m->pending > 0)
        return;
    uint32_t room = w.cfg.max_seq_tokens - m->len - m->reserved, n;
    if (room == 0)
        return;
    uint32_t most = room < w.cfg.max_chunk ? room : w.cfg.max_chunk;
    uint32_t left = m->known > m->len + m->reserved ? m->known - m->len - m->reserved : 0;
    n = left > 1 ? 1 + rng_below(&w.r, left)
                 : 1 + (rng_below(&w.r, 6) == 0 ? rng_below(&w.r, 20) : 0);
    n = n < most ? n : most;
    uint32_t was = m->known;
    learn(m, m->len + m->reserved + n);
    hash_text(m, was);
    reserve(m, n);
}

static void op_rollback(void)
{
    struct model_seq *m = pick(true);
    if (m == NULL || m->pending == 0)
        return;
    kvpool_rollback(w.pool, m->id);
    m->reserved -= m->pending;
    m->pending = 0;
    m->copying = m->copying && m->reserved > 0;
}

static void op_launch(void)
{
    int i = w.step[0].live;
    if (i == 1 && w.step[1].live)
        return;
    struct step *s = &w.step[i];
    s->n_rows = s->n_writes = s->n_reads = 0;
    for (int k = 0; k < SEQS; k++)
        if (w.seq[k].open && w.seq[k].pending > 0)
            record(s, &w.seq[k]);
    if (s->n_rows == 0)
        return;
    const struct plan_copy *c = kvpool_take_copies(w.pool, &s->n_copies);
    memcpy(s->copy, c, s->n_copies * sizeof *c);
    for (uint32_t a = 0; a < s->n_copies; a++) /* they may run in any order */
        for (uint32_t b = 0; b < s->n_copies; b++)
            REQUIRE(c[a].from != c[b].to && (a == b || c[a].to != c[b].to));
    s->live = true;
    s->number = w.last_step += 1 + rng_below(&w.r, 3);
    kvpool_launch(w.pool, s->number);
}

/* All copies before the first store; all stores before the first read. */
static void execute(struct step *s)
{
    uint32_t b = w.lay.block_tokens;
    for (uint32_t i = 0; i < s->n_copies; i++)
        memcpy(&w.cells[(uint32_t)s->copy[i].to * b], &w.cells[(uint32_t)s->copy[i].from * b],
               b * sizeof w.cells[0]);
    for (uint32_t i = 0; i < s->n_writes; i++)
        w.cells[s->write[i].slot] = s->write[i].value;
    for (uint32_t i = 0; i < s->n_reads; i++)
        REQUIRE(w.cells[s->read[i].slot] == s->read[i].value);
}

static void commit_rows(struct step *s)
{
    for (uint32_t i = 0; i < s->n_rows; i++) {
        struct model_seq *m = &w.seq[s->row[i].seq];
        if (!m->open || m->generation != s->row[i].generation)
            continue;
        uint32_t n = s->row[i].n, take = n;
        if (m->reserved == n && rng_below(&w.r, 8) == 0)
            take = rng_below(&w.r, n + 1); /* the rest is given back */
        kvpool_commit(w.pool, m->id, m->text + m->len, take);
        m->len += take;
        m->reserved -= take;
        m->told = m->told > m->len ? m->told : m->len;
        if (take > 0 || n == m->reserved + take)
            m->copying = false;
        if (take < n) {
            kvpool_rollback(w.pool, m->id);
            m->reserved = 0;
        }
    }
}

static void op_finish(void)
{
    struct step *s = &w.step[0];
    if (!s->live)
        return;
    execute(s);
    bool first = rng_below(&w.r, 2) == 0;
    if (first)
        kvpool_retire(w.pool, s->number);
    commit_rows(s);
    if (!first)
        kvpool_retire(w.pool, s->number);
    if (w.step[1].live) {
        *s = w.step[1];
        w.step[1].live = false;
    } else {
        s->live = false;
    }
}

/* The only step in flight fails: nothing of it was done. */
static void op_abort(void)
{
    struct step *s = &w.step[0];
    if (!s->live || w.step[1].live || rng_below(&w.r, 3) != 0)
        return;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        struct model_seq *m = &w.seq[s->row[i].seq];
        if (!m->open || m->generation != s->row[i].generation)
            continue;
        if (m->pending > 0) {
            kvpool_rollback(w.pool, m->id);
            m->reserved -= m->pending;
            m->pending = 0;
        }
        kvpool_rollback(w.pool, m->id);
        m->reserved = 0;
        m->copying = false;
    }
    kvpool_retire(w.pool, s->number);
    s->live = false;
    n_aborts++;
}

static void op_fork(void)
{
    struct model_seq *m = pick(true), *c = pick(false);
    struct err e;
    if (m == NULL || c == NULL)
        return;
    seq_id id;
    enum err_code rc = kvpool_fork(w.pool, m->id, &id, &e);
    REQUIRE(rc == (m->reserved > 0 ? ERR_CONFLICT : ERR_OK));
    if (rc != ERR_OK)
        return;
    *c = *m;
    c->id = id;
    c->generation = ++w.generation;
    c->known = c->told;
    n_forks++;
}

static void op_close(void)
{
    struct model_seq *m = pick(true);
    if (m == NULL)
        return;
    uint64_t had = idle();
    uint32_t gain = kvpool_gain(w.pool, m->id);
    kvpool_close(w.pool, m->id);
    if (!in_flight())
        REQUIRE(idle() == had + gain);
    else
        n_in_flight_closes++;
    m->open = false;
}

static void op_pin(void)
{
    uint32_t at = rng_below(&w.r, PINS);
    struct model_pin *pin = &w.pin[at];
    const struct model_seq *m = pick(true);
    struct err e;
    w.clock++;
    if (pin->set && rng_below(&w.r, 2) == 0) {
        uint32_t due = 0;
        for (int i = 0; i < PINS; i++)
            if (w.pin[i].set && w.pin[i].expires <= w.clock) {
                w.pin[i].set = false;
                due++;
            }
        REQUIRE(kvpool_expire_pins(w.pool, w.clock) == due);
    } else if (pin->set) {
        kvpool_unpin(w.pool, pin->pin);
        pin->set = false;
    } else if (m != NULL && rng_below(&w.r, 3) == 0) {
        memcpy(pin->text, m->text, m->known * sizeof *m->text);
        pin->key = m->key;
        pin->key.no_lookup = false;
        pin->expires = w.clock + rng_below(&w.r, 20);
        enum err_code rc = kvpool_pin(w.pool, pin->text, m->known, &pin->key, pin->expires,
                                      &pin->pin, &pin->n, &e);
        REQUIRE(rc == ERR_OK || rc == ERR_BUSY || rc == ERR_NOT_FOUND);
        pin->set = rc == ERR_OK;
        n_pins += pin->set;
    }
}

static void op_reset(void)
{
    struct kvpool_stats st;
    if (rng_below(&w.r, 40) != 0)
        return;
    kvpool_reset_cache(w.pool);
    kvpool_stats(w.pool, &st);
    REQUIRE(st.n_cached == 0);
}

/* ---- worlds ------------------------------------------------------------------------ */

static void new_world(void)
{
    static const uint32_t windows[] = { 0, 0, 1, 15, 16, 17, 33, 48, 64, 100, 5000 };
    struct pool_spec spec = { .seqs = SEQS, .block_tokens = 16 };
    struct err e;
    struct rng r = w.r;
    spec.n_groups = 1 + rng_below(&r, GROUPS);
    for (uint32_t g = 0; g < spec.n_groups; g++)
        spec.windows[g] = windows[rng_below(&r, 11)];
    spec.blocks = spec.n_groups + rng_below(&r, BLOCKS - spec.n_groups);
    spec.seq_tokens = 21 + rng_below(&r, TEXT - 21);
    spec.chunk = 1 + rng_below(&r, spec.seq_tokens);
    spec.boundary = rng_below(&r, 2) == 0 ? 0 : 1 + rng_below(&r, 6);
    spec.hash_bits = rng_below(&r, 3) == 0 ? 1 + rng_below(&r, 6) : 0;
    spec.no_caching = rng_below(&r, 10) == 0;
    memset(&w, 0, sizeof w);
    w.r = r;
    w.lay = layout_of(&spec);
    w.cfg = config_of(&spec);
    w.cfg.max_pins = PINS;
    w.cfg.pin_budget = rng_below(&w.r, w.cfg.n_blocks - w.lay.n_groups + 1) / 2;
    REQUIRE(kvpool_create(&w.pool, &w.lay, &w.cfg, &e) == ERR_OK);
    for (uint32_t b = 0; b < w.cfg.n_blocks; b++)
        poison((blk_id)b);
}

static void end_world(void)
{
    struct kvpool_stats st;
    while (w.step[0].live)
        op_finish();
    for (int i = 0; i < SEQS; i++)
        if (w.seq[i].open)
            kvpool_close(w.pool, w.seq[i].id);
    kvpool_expire_pins(w.pool, UINT64_MAX);
    kvpool_stats(w.pool, &st);
    REQUIRE(st.n_held == 0 && st.n_resting == 0 && st.n_free + st.n_cached == st.n_blocks);
    REQUIRE(kvpool_check(w.pool, NULL) == ERR_OK);
    kvpool_reset_cache(w.pool);
    REQUIRE(kvpool_check(w.pool, NULL) == ERR_OK);
    kvpool_destroy(w.pool);
}

int main(int argc, char **argv)
{
    static void (*const ops[])(void) = { op_open,    op_open,   op_reserve, op_reserve,  op_reserve,
                                         op_reserve, op_launch, op_launch,  op_finish,   op_finish,
                                         op_fork,    op_close,  op_close,   op_rollback, op_abort,
                                         op_reset,   op_pin };
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 200000;
    start_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    w.r.state = start_seed;
    while (done_ops < n) {
        new_world();
        for (int i = 0; i < 1500 && done_ops < n; i++, done_ops++) {
            ops[rng_below(&w.r, sizeof ops / sizeof ops[0])]();
            check_world();
        }
        end_world();
    }
    printf(
        "%llu operations: %llu hits, %llu copies, %llu forks, %llu refusals, %llu aborted steps, "
        "%llu closes in flight, %llu pins\n",
        (unsigned long long)n, (unsigned long long)n_hits, (unsigned long long)n_copied,
        (unsigned long long)n_forks, (unsigned long long)n_refused, (unsigned long long)n_aborts,
        (unsigned long long)n_in_flight_closes, (unsigned long long)n_pins);
    /* The operations of the default length must have met what they are for. */
    REQUIRE(n < 100000 ||
            (n_hits > 100 && n_copied > 100 && n_refused > 100 && n_aborts > 10 && n_forks > 100));
    return 0;
}
