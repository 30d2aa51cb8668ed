/* kv_drive.h: run sequences of seeded texts through a pool, one step at a time.
 *
 * A text is named by a seed; drive_open and drive_to compute it as a server
 * would: reserve, (nothing to execute), commit. */
#ifndef TESTS_SUPPORT_KV_DRIVE_H
#define TESTS_SUPPORT_KV_DRIVE_H

#include "support/kv_fixture.h"

enum { DRIVE_TEXT = 1 << 16 };

struct drive {
    int32_t text[DRIVE_TEXT];
    uint32_t cached; /* of the last open */
};

static struct drive drive;

/* Open n tokens of drive.text as they stand. */
static inline seq_id drive_open_text(struct kvpool *p, uint32_t n, const struct kvpool_key *key)
{
    seq_id s;
    struct err e;
    assert_ok(kvpool_open(p, drive.text, n, key, &s, &drive.cached, &e), e);
    return s;
}

static inline seq_id drive_open(struct kvpool *p, uint32_t seed, uint32_t n)
{
    fill_text(drive.text, seed, n);
    return drive_open_text(p, n, NULL);
}

/* Compute drive.text up to `to` tokens, chunk at a time. */
static inline void drive_text_to(struct kvpool *p, seq_id s, uint32_t to, uint32_t chunk)
{
    struct err e;
    while (kvpool_length(p, s) < to) {
        uint32_t at = kvpool_length(p, s), n = to - at < chunk ? to - at : chunk;
        assert_ok(kvpool_reserve(p, s, n, &e), e);
        kvpool_commit(p, s, drive.text + at, n);
    }
}

static inline void drive_to(struct kvpool *p, seq_id s, uint32_t seed, uint32_t to, uint32_t chunk)
{
    fill_text(drive.text, seed, to);
    drive_text_to(p, s, to, chunk);
}

/* A whole request: prompt of n tokens in chunks, then `out` more; returns the
 * tokens that were cached. */
static inline uint32_t drive_request(struct kvpool *p, uint32_t seed, uint32_t n, uint32_t out,
                                     uint32_t chunk)
{
    seq_id s = drive_open(p, seed, n);
    uint32_t cached = drive.cached;
    drive_to(p, s, seed, n, chunk);
    drive_to(p, s, seed, n + out, 1);
    kvpool_close(p, s);
    return cached;
}

static inline struct kvpool_stats drive_stats(const struct kvpool *p)
{
    struct kvpool_stats st;
    kvpool_stats(p, &st);
    return st;
}

static inline void assert_pool_idle(struct kvpool *p)
{
    struct kvpool_stats st = drive_stats(p);
    assert_int_equal(st.n_held + st.n_resting + st.n_seqs, 0);
    assert_int_equal(st.n_free + st.n_cached + st.quarantined, st.n_blocks);
    assert_ledger(p);
}

#endif
