/* inspect.c: joins the pool's block map with the scheduler's sequences. */
#include "server/engine/inspect.h"

struct page {
    const struct kvpool *pool;
    const struct kv_layout *lay;
    struct engine_blocks *m;
};

/* A running sequence: note it at every block of the page that it names. */
static void add_holder(void *ctx, req_id id, uint32_t choice, seq_id sid)
{
    const struct page *g = ctx;
    struct engine_blocks *m = g->m;

    for (uint32_t group = 0; group < g->lay->n_groups; group++) {
        uint32_t n;
        const blk_id *row = kvpool_table(g->pool, sid, group, &n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = (uint32_t)row[i] - m->first;
            if (row[i] == BLK_NONE || at >= m->n)
                continue;
            struct engine_holders *h = &m->holders[at];
            if (h->n < ENGINE_HOLDERS)
                h->who[h->n++] = (struct engine_holder){ id, choice };
        }
    }
}

void inspect_blocks(const struct kvpool *p, const struct sched *s, const struct kv_layout *lay,
                    struct engine_blocks *m)
{
    struct page g = { p, lay, m };
    struct kvpool_stats st;
    struct sched_stats ss;

    kvpool_stats(p, &st);
    sched_stats(s, &ss);
    m->n_blocks = (uint32_t)st.n_blocks;
    m->step = ss.steps;
    m->n = kvpool_map(p, m->first, m->n, m->block);
    sched_each_holder(s, add_holder, &g);
}
