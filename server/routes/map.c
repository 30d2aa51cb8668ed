/* map.c: GET /admin/cache/blocks and /admin/steps: the pool block by
 * block, and the last steps.  I/O thread. */
#include "server/routes/routes.h"

#include <stdio.h>
#include <stdlib.h>

#include "server/routes/ask.h"
#include "server/base/clock.h"
#include "server/generate/generate.h"
#include "server/http/query.h"
#include "server/http/http.h"

enum { PAGE = 1000, MOST_PAGE = 10000, STEPS = 64, MOST_STEPS = 65536 };

/* ------------------------------------------------------------------ blocks */

static const char *const states[] = { "free", "cached", "resting", "held", "quarantined" };

/* What a map's ask carries besides its mail. */
struct map {
    uint64_t state; /* 0: all, else enum kvpool_state + 1 */
    struct kvpool_block *block;
    struct engine_holders *holders;
};

static void release_map(struct admin_ask *q)
{
    struct map *map = q->more;

    free(map->block);
    free(map->holders);
    free(map);
}

static void put_request(struct buf *o, const struct routes *rt, req_id id, uint32_t choice)
{
    struct gen_view g = { 0 };

    gen_find(rt->gen, id, &g); /* all 0 for one that has ended */
    BUF_LIT(o, "{\"id\":");
    json_put_cstring(o, g.id);
    admin_put(o, "prompt", g.prompt);
    admin_put(o, "choice", choice);
}

static void put_block(struct buf *o, const struct routes *rt, uint32_t id,
                      const struct kvpool_block *b, const struct engine_holders *h)
{
    char hash[24];

    BUF_LIT(o, "{");
    admin_put(o, "id", id);
    admin_put_key(o, "state");
    json_put_cstring(o, states[b->state]);
    admin_put(o, "refs", b->n_refs);
    admin_put(o, "pins", b->n_pins);
    admin_put(o, "group", b->group);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)b->prefix);
    admin_put_key(o, "prefix");
    json_put_cstring(o, b->published ? hash : NULL);
    admin_put(o, "age_steps", b->age_steps);
    admin_put_key(o, "evict_order");
    if (b->evict_order == UINT32_MAX)
        BUF_LIT(o, "null");
    else
        json_put_uint(o, b->evict_order);
    BUF_LIT(o, ",\"owners\":[");
    for (uint32_t i = 0; i < h->n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        put_request(o, rt, h->who[i].id, h->who[i].choice);
        BUF_LIT(o, "}");
    }
    BUF_LIT(o, "]}");
}

static void answer_blocks(struct admin_ask *q)
{
    const struct engine_blocks *a = &q->m.blocks;
    const struct map *map = q->more;
    struct buf o = { 0 };
    bool first = true;

    BUF_LIT(&o, "{");
    admin_put(&o, "total", a->n_blocks);
    admin_put(&o, "step", a->step);
    admin_put(&o, "offset", a->first);
    admin_put_key(&o, "next_offset");
    if (a->first + a->n < a->n_blocks && a->n > 0)
        json_put_uint(&o, a->first + a->n);
    else
        BUF_LIT(&o, "null");
    BUF_LIT(&o, ",\"blocks\":[");
    for (uint32_t i = 0; i < a->n; i++) {
        if (map->state != 0 && map->state != (uint64_t)a->block[i].state + 1)
            continue;
        if (!first)
            BUF_LIT(&o, ",");
        first = false;
        put_block(&o, q->rt, a->first + i, &a->block[i], &a->holders[i]);
    }
    BUF_LIT(&o, "]}");
    admin_reply(q, &o);
}

void handle_blocks(struct routes *rt, struct exchange *x)
{
    uint64_t offset = 0, limit = PAGE, state = 0;
    const struct query_rule rules[] = {
        { "offset", 0, INT32_MAX, NULL, &offset },
        { "limit", 1, MOST_PAGE, NULL, &limit },
        { "state", 0, 0, "all|free|cached|resting|held|quarantined", &state },
    };
    struct err e;

    if (query_read(x->query, rules, sizeof rules / sizeof *rules, &e) != ERR_OK) {
        reply_err(x, &e);
        return;
    }
    struct map *map = calloc(1, sizeof *map);
    struct admin_ask *q = map ? admin_ask_new(rt, x, ENGINE_BLOCKS, answer_blocks) : NULL;
    if (q == NULL) {
        if (map == NULL)
            reply_error(x, 500, NULL, "out of memory");
        free(map);
        return;
    }
    q->more = map;
    q->release = release_map;
    map->state = state;
    map->block = calloc(limit, sizeof *map->block);
    map->holders = calloc(limit, sizeof *map->holders);
    if (map->block == NULL || map->holders == NULL) {
        err_nomem(&e, "block map", limit * (sizeof *map->block + sizeof *map->holders));
        admin_ask_fail(q, &e);
        return;
    }
    q->m.blocks.first = (uint32_t)offset;
    q->m.blocks.n = (uint32_t)limit;
    q->m.blocks.block = map->block;
    q->m.blocks.holders = map->holders;
    admin_ask_post(q);
}

/* ------------------------------------------------------------------- steps */

/* "key": microseconds from one moment to the next; null while either is not. */
static void put_span(struct buf *o, const char *key, uint64_t from, uint64_t to)
{
    admin_put_key(o, key);
    if (from == 0 || to < from)
        BUF_LIT(o, "null");
    else
        json_put_uint(o, to - from);
}

static void put_rows(struct buf *o, const struct routes *rt, const struct srv_steps_copy *c,
                     const struct srv_step *s)
{
    admin_put_key(o, "rows_detail");
    if (s->first_row == UINT64_MAX) {
        BUF_LIT(o, "null");
        return;
    }
    BUF_LIT(o, "[");
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct srv_step_row *r = &c->row[s->first_row + i];
        if (i > 0)
            BUF_LIT(o, ",");
        put_request(o, rt, r->id, r->choice);
        admin_put(o, "request", r->id);
        admin_put(o, "past", r->past);
        admin_put(o, "tokens", r->n);
        admin_put(o, "left", r->left);
        BUF_LIT(o, "}");
    }
    BUF_LIT(o, "]");
}

static void put_step(struct buf *o, const struct routes *rt, const struct srv_steps_copy *c,
                     const struct srv_step *s, bool with_rows)
{
    static const char *const names[] = { "planned", "launched", "collected", "done", "failed" };

    BUF_LIT(o, "{");
    admin_put(o, "step", s->step);
    admin_put_key(o, "state");
    json_put_cstring(o, names[s->state]);
    admin_put(o, "began_us", s->began_us);
    put_span(o, "plan_us", s->began_us, s->planned_us);
    put_span(o, "launch_us", s->planned_us, s->launched_us);
    put_span(o, "collect_us", s->launched_us, s->collected_us);
    put_span(o, "commit_us", s->collected_us, s->ended_us);
    admin_put(o, "rows", s->n_rows);
    admin_put(o, "decode_rows", s->n_decodes);
    admin_put(o, "tokens", s->n_tokens);
    admin_put(o, "outputs", s->n_outputs);
    admin_put(o, "copies", s->n_copies);
    admin_put(o, "max_kv_len", s->max_kv_len);
    admin_put(o, "preempted", s->n_preempted);
    admin_open(o, "finished");
    admin_put(o, "stop", s->n_finished[FINISH_STOP]);
    admin_put(o, "length", s->n_finished[FINISH_LENGTH]);
    admin_put(o, "cancelled", s->n_finished[FINISH_CANCELLED]);
    admin_put(o, "error", s->n_finished[FINISH_ERROR]);
    BUF_LIT(o, "}");
    admin_put(o, "running", s->n_running);
    admin_put(o, "waiting", s->n_waiting);
    admin_put(o, "idle_blocks", s->n_idle_blocks);
    if (with_rows)
        put_rows(o, rt, c, s);
    BUF_LIT(o, "}");
}

static void answer_steps(struct admin_ask *q)
{
    const struct engine_steps *a = &q->m.steps;
    struct buf o = { 0 };

    if (a->rc != ERR_OK) {
        reply_err(q->x, &a->err);
        return;
    }
    BUF_LIT(&o, "{");
    admin_put(&o, "history", q->rt->step_history);
    admin_put(&o, "now_us", srv_now_us());
    BUF_LIT(&o, ",\"steps\":[");
    for (uint32_t i = 0; i < a->steps.n_steps; i++) {
        if (i > 0)
            BUF_LIT(&o, ",");
        put_step(&o, q->rt, &a->steps, &a->steps.step[i], a->with_rows);
    }
    BUF_LIT(&o, "]}");
    admin_reply(q, &o);
}

static void release_steps(struct admin_ask *q)
{
    srv_steps_copy_fini(&q->m.steps.steps);
}

void handle_steps(struct routes *rt, struct exchange *x)
{
    uint64_t last = STEPS, rows = 1;
    const struct query_rule rules[] = {
        { "last", 1, MOST_STEPS, NULL, &last },
        { "rows", 0, 0, "no|yes", &rows },
    };
    struct admin_ask *q;
    struct err e;

    if (query_read(x->query, rules, sizeof rules / sizeof *rules, &e) != ERR_OK) {
        reply_err(x, &e);
        return;
    }
    q = admin_ask_new(rt, x, ENGINE_STEPS, answer_steps);
    if (q == NULL)
        return;
    q->release = release_steps;
    q->m.steps.n = (uint32_t)last;
    q->m.steps.with_rows = rows == 1;
    admin_ask_post(q);
}
