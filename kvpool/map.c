/* map.c: the pool's blocks one by one, as an operator wants to see them.
 *
 * Reads only.  Engine thread alone.  Costs a walk over the idle lists and the
 * pins' tables, whatever the page asked for. */
#include "kvpool/lists.h"

static_assert((int)KVPOOL_FREE == BLK_FREE && (int)KVPOOL_CACHED == BLK_CACHED &&
                  (int)KVPOOL_RESTING == BLK_RESTING && (int)KVPOOL_HELD == BLK_HELD &&
                  (int)KVPOOL_QUARANTINED == BLK_QUARANTINED,
              "states are told as they are kept");

/* A page of blocks [first, first + n). */
struct page {
    uint32_t first, n;
    struct kvpool_block *block;
};

static struct kvpool_block *on_page(const struct page *g, uint32_t b)
{
    return b - g->first < g->n ? &g->block[b - g->first] : NULL;
}

static struct kvpool_block describe(const struct kvpool *p, uint32_t b)
{
    const struct blk *k = kvpool_blk(p, b);
    struct kvpool_block out = { .state = (enum kvpool_state)k->state,
                                .group = k->group,
                                .n_refs = k->ref,
                                .published = k->node != NIL,
                                .evict_order = UINT32_MAX,
                                .age_steps = p->launched - k->step };
    if (out.published)
        out.prefix = kvpool_node(p, k->node)->key;
    if (k->state == BLK_HELD)
        out.age_steps = 0;
    return out;
}

static void number(const struct page *g, uint32_t b, uint32_t order)
{
    struct kvpool_block *k = on_page(g, b);
    if (k != NULL)
        k->evict_order = order;
}

/* Number the idle blocks in the order in which they will be handed out. */
static void number_idle(const struct kvpool *p, const struct page *g)
{
    uint32_t order = 0;
    for (uint32_t b = p->free.head; b != NIL; b = kvpool_blk(p, b)->next)
        number(g, b, order++);
    struct lru_walk w;
    kvpool_walk_start(&w, p);
    for (uint32_t b; (b = kvpool_walk_next(&w, p)) != NIL;)
        number(g, b, order++);
}

static void count_pins(const struct kvpool *p, const struct page *g)
{
    for (uint32_t id = p->cfg.max_seqs; p->n_pins > 0 && id < p->n_slots; id++) {
        const struct seq *s = &p->seq[id];
        for (uint32_t grp = 0; s->open && grp < p->n_groups; grp++)
            for (uint32_t i = s->first[grp]; i < s->n_published; i++) {
                struct kvpool_block *k = on_page(g, (uint32_t)kvpool_row(p, s, grp)[i]);
                if (k != NULL)
                    k->n_pins++;
            }
    }
}

uint32_t kvpool_map(const struct kvpool *p, uint32_t first, uint32_t n, struct kvpool_block *out)
{
    if (first >= p->cfg.n_blocks)
        return 0;
    struct page g = { .first = first, .n = p->cfg.n_blocks - first, .block = out };
    g.n = g.n < n ? g.n : n;
    for (uint32_t i = 0; i < g.n; i++)
        out[i] = describe(p, first + i);
    number_idle(p, &g);
    count_pins(p, &g);
    return g.n;
}
