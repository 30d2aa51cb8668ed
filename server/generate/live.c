/* live.c: the live generations: their list, and the table from engine ids to
 * them.  A request id is a number never given before, and behind it the number of
 * its slot.  I/O thread. */
#include "server/generate/gen.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT_BITS = 24, FIRST_SLOTS = 256 };

void gen_live_add(struct gen *g)
{
    struct generator *gr = g->gr;

    g->next = gr->live;
    if (g->next)
        g->next->prev = g;
    gr->live = g;
}

static uint32_t slot_of(req_id id)
{
    return (uint32_t)id & ((1u << SLOT_BITS) - 1);
}

static void free_slot(struct generator *gr, req_id id)
{
    uint32_t at = slot_of(id);

    gr->slots[at] = (struct gen_slot){ .next_free = gr->free_slot };
    gr->free_slot = at;
}

void gen_live_remove(struct gen *g)
{
    struct generator *gr = g->gr;

    for (uint32_t i = 0; gen_live_has_slots(g) && i < g->prompts.n; i++)
        free_slot(gr, g->request[i].id);
    if (g->prev)
        g->prev->next = g->next;
    else
        gr->live = g->next;
    if (g->next)
        g->next->prev = g->prev;
}

static bool grow_slots(struct generator *gr)
{
    uint32_t n = gr->n_slots ? gr->n_slots * 2 : FIRST_SLOTS;
    struct gen_slot *p = n > 1u << SLOT_BITS ? NULL : realloc(gr->slots, n * sizeof *p);

    if (p == NULL)
        return false;
    for (uint32_t i = gr->n_slots; i < n; i++)
        p[i] = (struct gen_slot){ .next_free = i + 1 < n ? i + 1 : UINT32_MAX };
    gr->free_slot = gr->n_slots;
    gr->slots = p;
    gr->n_slots = n;
    return true;
}

enum err_code gen_live_take_slots(struct gen *g, struct err *e)
{
    struct generator *gr = g->gr;

    for (uint32_t i = 0; i < g->prompts.n; i++) {
        if ((gr->n_slots == 0 || gr->free_slot == UINT32_MAX) && !grow_slots(gr)) {
            while (i-- > 0) {
                free_slot(gr, g->request[i].id);
                g->request[i].id = 0;
            }
            return err_nomem(e, "request table", 2ull * gr->n_slots * sizeof *gr->slots);
        }
        uint32_t at = gr->free_slot;
        struct gen_slot *s = &gr->slots[at];
        gr->free_slot = s->next_free;
        *s = (struct gen_slot){ .g = g, .prompt = i, .id = ++gr->n_ids << SLOT_BITS | at };
        g->request[i].id = s->id;
    }
    return ERR_OK;
}

bool gen_live_has_slots(const struct gen *g)
{
    /* While the job runs, the requests are the pool's. */
    return g->job.state == JOB_IDLE && g->request != NULL && g->request[0].id != 0;
}

const struct gen_slot *gen_live_slot(const struct generator *gr, req_id id)
{
    const struct gen_slot *s = slot_of(id) < gr->n_slots ? &gr->slots[slot_of(id)] : NULL;

    return s != NULL && s->g != NULL && s->id == id ? s : NULL;
}

bool gen_find(const struct generator *gr, req_id id, struct gen_view *out)
{
    const struct gen_slot *s = gen_live_slot(gr, id);

    if (s == NULL)
        return false;
    *out = (struct gen_view){ .id = s->g->id,
                              .request_id = s->g->request_id,
                              .began_us = s->g->began_us,
                              .prompt = s->prompt };
    return true;
}

bool gen_live_is_named(const struct gen *g, const char *id)
{
    return strcmp(g->id, id) == 0 || strcmp(g->request_id, id) == 0;
}

enum err_code gen_copy_prompt(const struct generator *gr, const char *id, struct token_list *ids,
                              uint64_t *salt, struct err *e)
{
    const struct gen *g = gr->live;

    while (g != NULL && !(gen_live_has_slots(g) && gen_live_is_named(g, id)))
        g = g->next;
    if (g == NULL)
        return err_set_param(e, ERR_NOT_FOUND, "request_id",
                             "request_id: no live request has the id `%.150s`", id);
    if (g->prompts.n != 1)
        return err_set_param(e, ERR_INVALID, "request_id",
                             "request_id: found a request of %u prompts, expected one",
                             g->prompts.n);
    const struct token_list *from = &g->prompts.prompt[0].ids;
    *ids = (struct token_list){ .id = malloc((from->n + 1) * sizeof *from->id), .n = from->n };
    if (ids->id == NULL)
        return err_nomem(e, "prompt", from->n * sizeof *from->id);
    memcpy(ids->id, from->id, from->n * sizeof *from->id);
    *salt = g->request[0].key.salt;
    return ERR_OK;
}
