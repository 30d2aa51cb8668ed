/* kvpool.h: who holds which KV block.
 *
 * One global pool of block ids, shared by every layer group of every sequence:
 * reference counts, free list in eviction order, prefix index, sliding windows,
 * copy-on-write forks, resting blocks, and the ledger that proves the sums.
 * Host memory only; the bytes behind the ids are attention's.  Called by the
 * engine thread alone; statistics are copied out by value.
 *
 * A sequence's life:
 *   open    -> prefix looked up, hit blocks held; `n_cached` tokens need no compute
 *   reserve -> room for the next n tokens in every group; blocks below every
 *              window are dropped; shared blocks that would be written are copied
 *   commit  -> n reserved tokens were computed: extend, publish full blocks
 *   rollback-> the reserved tokens will not be computed: undo reserve
 *   fork    -> a second sequence sharing every block so far
 *   close   -> release; published blocks stay cached until handed out again
 * A block freed while step s is in flight rests until kvpool_retire(s).
 *
 * Invariants, each asserted under its number by kvpool_check():
 * (1) ref[b] = table entries naming b, over all open sequences and groups, plus
 *     the copies of open reservations that read it.
 * (2) A block is exactly one of: held (ref > 0), resting, cached (idle with a
 *     hash), free (idle without), quarantined; the counts sum to the total.
 * (3) An idle block keeps its hash until handed out: eviction is allocation.
 * (4) A reserved slot's block is not published, no other table reads the slot,
 *     and no other reservation writes to the block.
 * (5) A published block is full, computed, and never written again.
 * (6) The prefix index holds exactly the published blocks, each once.
 * (7) A row's entries below its window are -1; entries at or above it, up to
 *     the reserved length, are mapped.
 * (8) Per-group held counts sum to the pool's held count; pins' blocks to n_pinned.
 * (9) The free list holds each idle block exactly once, in eviction order. */
#ifndef KVPOOL_KVPOOL_H
#define KVPOOL_KVPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/ids.h"
#include "proto/plan/kv_layout.h"
#include "proto/plan/step_plan.h"

struct kvpool;

struct kvpool_config {
    uint32_t n_blocks;
    uint32_t max_seqs;       /* open at once                                     */
    uint32_t max_seq_tokens; /* longest sequence: bounds a row's table           */
    uint32_t max_chunk;      /* most tokens one reserve may ask for              */
    bool prefix_caching;
    uint32_t boundary_blocks; /* windowed groups: a reusable boundary every so many
                               * blocks; 0: 16 times the longest window          */
    uint64_t hash_seed;       /* of the prefix index: fixed where replicas compare
                               * hashes, random where tokens come from strangers  */
    uint32_t max_pins;        /* pinned prefixes at once                          */
    uint32_t pin_budget;      /* blocks they may hold; kvpool_can_ever_fit counts
                               * them as taken, so that pins starve nobody        */
    uint32_t hash_bits;       /* 0: all 128; fewer only to test collisions        */
};

/* The layout is copied.  ERR_INVALID when a limit is 0, a slot number would not
 * fit 31 bits, or a single sequence of one token could not fit; ERR_NOMEM. */
MUST_USE enum err_code kvpool_create(struct kvpool **out, const struct kv_layout *lay,
                                     const struct kvpool_config *cfg, struct err *e);
void kvpool_destroy(struct kvpool *p);

/* What separates prefixes that must never be shared although tokens agree. */
struct kvpool_key {
    uint64_t salt;  /* hash of the request's cache_salt; 0: none */
    bool no_lookup; /* compute everything (prompt logprobs need all logits) */
    bool again;     /* a preempted request's return: not counted a second time */
};

/* Open a sequence with its known tokens (copied) and look its prefix up.
 * *n_cached: tokens already computed and now held, a multiple of block_tokens,
 * always < n_tokens (at least one token is recomputed).
 * ERR_BUSY: max_seqs open.  ERR_LIMIT: n_tokens > max_seq_tokens. */
MUST_USE enum err_code kvpool_open(struct kvpool *p, const int32_t *tokens, uint32_t n_tokens,
                                   const struct kvpool_key *key, seq_id *out, uint32_t *n_cached,
                                   struct err *e);

/* How the tokens of one kvpool_open divide: query = hit + the misses, by reason.
 * All 0 when nothing was looked up (no_lookup, or caching is off). */
struct kvpool_lookup {
    uint32_t query_tokens, hit_tokens;
    uint32_t miss_never, miss_evicted, miss_salt, miss_granularity, miss_window;
};

/* What s found when it was opened (a fork: what its parent did); `again` keeps it
 * out of the pool's counters, not out of here. */
struct kvpool_lookup kvpool_lookup(const struct kvpool *p, seq_id s);

/* How many of these tokens a kvpool_open now would find, changing nothing, not
 * even recency or counters. */
uint32_t kvpool_peek(const struct kvpool *p, const int32_t *tokens, uint32_t n_tokens,
                     const struct kvpool_key *key);

/* Room for the next n tokens after the computed (and already reserved) ones, in
 * every group.  All or nothing: ERR_BUSY (not enough idle blocks), ERR_LIMIT
 * (past max_chunk or max_seq_tokens) and ERR_NOMEM change nothing.  Copies that
 * the step must do before its first store are appended to the pool's copy list. */
MUST_USE enum err_code kvpool_reserve(struct kvpool *p, seq_id s, uint32_t n, struct err *e);

/* Blocks a reserve of n would take from the idle list now. */
uint32_t kvpool_reserve_cost(const struct kvpool *p, seq_id s, uint32_t n);

/* Undo the last reserve of s that was not committed (its step did not run). */
void kvpool_rollback(struct kvpool *p, seq_id s);

/* The reserved tokens were computed; they are tokens[0..n) (copied when past
 * the tokens known so far, checked equal otherwise).  Publishes full blocks. */
void kvpool_commit(struct kvpool *p, seq_id s, const int32_t *tokens, uint32_t n);

/* A new sequence with the same computed tokens, every block shared.  Parent
 * must have nothing reserved (else ERR_CONFLICT).  ERR_BUSY: max_seqs open. */
MUST_USE enum err_code kvpool_fork(struct kvpool *p, seq_id parent, seq_id *out, struct err *e);

/* Release all of s.  Blocks it alone held become cached or free, resting first
 * when the step in flight may read them. */
void kvpool_close(struct kvpool *p, seq_id s);

/* A step was launched: blocks freed from now on may be read by it.
 * It has ended: blocks that rested for it (and earlier ones) become idle. */
void kvpool_launch(struct kvpool *p, uint64_t step);
void kvpool_retire(struct kvpool *p, uint64_t step);

/* Idle blocks: what a reserve could take now. */
uint32_t kvpool_idle(const struct kvpool *p);

/* Whether s names an open sequence. */
bool kvpool_is_open(const struct kvpool *p, seq_id s);
/* Computed tokens of s, reserved ones beyond them, and blocks it holds (shared
 * ones count whole). */
uint32_t kvpool_length(const struct kvpool *p, seq_id s);
uint32_t kvpool_reserved(const struct kvpool *p, seq_id s);
uint32_t kvpool_held(const struct kvpool *p, seq_id s);
/* Blocks that closing s now would make idle (held by it alone). */
uint32_t kvpool_gain(const struct kvpool *p, seq_id s);

/* Row of group g: entry i holds positions [i*B, (i+1)*B), -1 below the window.
 * *n: entries up to the reserved length.  Borrowed until the next call with a
 * non-const pool. */
const blk_id *kvpool_table(const struct kvpool *p, seq_id s, uint32_t g, uint32_t *n);

/* Copies wanted by reserves since the last call; borrowed until the next
 * reserve.  Clears the list. */
const struct plan_copy *kvpool_take_copies(struct kvpool *p, uint32_t *n);

/* Whether n_tokens in one sequence, chunk at a time, could ever fit an empty
 * pool; *need and *have in blocks. */
bool kvpool_can_ever_fit(const struct kvpool *p, uint64_t n_tokens, uint32_t chunk, uint64_t *need,
                         uint64_t *have);

struct kvpool_stats {
    uint64_t n_blocks, n_free, n_cached, n_held, n_resting; /* sum: total  */
    uint64_t group_held[KV_GROUPS];
    uint64_t n_seqs;
    uint64_t tokens_held;              /* computed tokens over open sequences and groups */
    uint64_t tokens_wasted;            /* unused slots in held, part-filled blocks       */
    uint64_t query_tokens, hit_tokens; /* counters     */
    uint64_t miss_never, miss_evicted, miss_salt, miss_granularity, miss_window;
    uint64_t evictions, copies, published;
    uint64_t oldest_cached_step; /* step at which the next victim was last used */
    uint64_t checked_step;       /* last step at which the ledger was checked   */
    uint64_t violations, quarantined;
    uint64_t n_pins, n_pinned; /* pins, and blocks they name (within n_held)    */
};
void kvpool_stats(const struct kvpool *p, struct kvpool_stats *out);

/* Check the numbered invariants.  ERR_INVALID names the number, the block and
 * both values; the offending blocks are quarantined (never handed out). */
enum err_code kvpool_check(struct kvpool *p, struct err *e);

/* Whether a check found a block of s at fault: what s computes from now on
 * cannot be trusted, its request should end in an error. */
bool kvpool_damaged(const struct kvpool *p, seq_id s);

/* Hold what is cached of these tokens (whole blocks, up to a reusable boundary;
 * *n_pinned tokens) against eviction until kvpool_unpin, or until
 * kvpool_expire_pins is told a time not before `expires` (any one clock).
 * ERR_NOT_FOUND: nothing cached.  ERR_BUSY: max_pins or pin_budget. */
MUST_USE enum err_code kvpool_pin(struct kvpool *p, const int32_t *tokens, uint32_t n_tokens,
                                  const struct kvpool_key *key, uint64_t expires, uint32_t *pin,
                                  uint32_t *n_pinned, struct err *e);
void kvpool_unpin(struct kvpool *p, uint32_t pin);
/* Unpins what is due; returns how many. */
uint32_t kvpool_expire_pins(struct kvpool *p, uint64_t now);

enum kvpool_state { KVPOOL_FREE, KVPOOL_CACHED, KVPOOL_RESTING, KVPOOL_HELD, KVPOOL_QUARANTINED };

/* One block, for the block map. */
struct kvpool_block {
    enum kvpool_state state;
    bool published;       /* under `prefix` in the index                       */
    uint32_t group;       /* last held by                                      */
    uint32_t n_refs;      /* table entries and copies that name it             */
    uint32_t n_pins;      /* of these, pins'                                   */
    uint32_t evict_order; /* idle: how many go before it; else UINT32_MAX      */
    uint64_t age_steps;   /* not held: steps since one may have used it        */
    uint64_t prefix;      /* part of its prefix' hash; 0 when not published    */
};

/* Describe blocks [first, first + n) into out[]; returns how many there are.
 * O(idle blocks + n). */
uint32_t kvpool_map(const struct kvpool *p, uint32_t first, uint32_t n, struct kvpool_block *out);

/* Drop every cached block's hash (they become free); returns how many. */
uint32_t kvpool_reset_cache(struct kvpool *p);

#endif
