/* window.c: which windowed blocks stay reusable after the window has passed.
 *
 * A prefix hit at a boundary of k blocks needs, in every windowed group, the
 * blocks that a query at position k * block_tokens still sees: the boundary's
 * tail.  Keeping every block would fill the cache with blocks that no boundary
 * needs, so only the tails of chosen boundaries are published: the prompt's
 * end, the turn's end (on close), every boundary_every blocks, and the place
 * where this prompt's own look-up fell short of a known prefix.  kvpool/README.md
 * states what that costs.  Pure functions; engine thread. */
#include "kvpool/pool.h"

enum { TAILS_PER_BOUNDARY = 16, MIN_BOUNDARY = 64 };

uint32_t kvpool_window_every(const struct kv_layout *lay)
{
    uint64_t longest = 0;
    for (uint32_t g = 0; g < lay->n_groups; g++) {
        uint64_t tail =
            ((uint64_t)lay->group[g].window + lay->block_tokens - 1) / lay->block_tokens;
        longest = tail > longest ? tail : longest;
    }
    uint64_t every = longest * TAILS_PER_BOUNDARY;
    if (every < MIN_BOUNDARY)
        every = MIN_BOUNDARY;
    return every > INT32_MAX ? INT32_MAX : (uint32_t)every;
}

static bool in_tail(const struct kvpool *p, uint32_t g, uint64_t boundary, uint32_t col)
{
    uint64_t end = boundary << p->shift;
    return col < boundary && end <= UINT32_MAX - 1 &&
           kvpool_window_first(p, g, (uint32_t)end) <= col;
}

bool kvpool_window_keeps(const struct kvpool *p, const struct seq *s, uint32_t g, uint32_t col)
{
    for (size_t i = 0; i < sizeof s->keep / sizeof s->keep[0]; i++)
        if (in_tail(p, g, s->keep[i], col))
            return true;
    uint64_t next = ((uint64_t)col / p->boundary_every + 1) * p->boundary_every;
    return in_tail(p, g, next, col);
}
