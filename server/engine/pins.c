/* pins.c: the table of pins: slot i describes the pool's pin i. */
#include "server/engine/pins.h"

#include <stdlib.h>

struct srv_pins {
    struct srv_pin *pin; /* [max] */
    uint32_t max, n;
    uint64_t last_number;
};

enum err_code srv_pins_create(struct srv_pins **out, uint32_t max_pins, struct err *e)
{
    struct srv_pins *t = calloc(1, sizeof *t);

    if (t != NULL)
        t->pin = calloc(max_pins + 1, sizeof *t->pin);
    if (t == NULL || t->pin == NULL) {
        free(t);
        return err_nomem(e, "table of pins", (max_pins + 1ull) * sizeof *t->pin);
    }
    t->max = max_pins;
    *out = t;
    return ERR_OK;
}

void srv_pins_destroy(struct srv_pins *t)
{
    if (t == NULL)
        return;
    free(t->pin);
    free(t);
}

static uint64_t n_pinned(const struct kvpool *p)
{
    struct kvpool_stats s;

    kvpool_stats(p, &s);
    return s.n_pinned;
}

enum err_code srv_pins_add(struct srv_pins *t, struct kvpool *p, const int32_t *tokens,
                           uint32_t n_tokens, const struct kvpool_key *key, uint64_t expires_us,
                           struct srv_pin *out, struct err *e)
{
    uint64_t before = n_pinned(p);
    uint32_t slot, n;

    if (t->max == 0)
        return err_set(e, ERR_CONFLICT,
                       "pins are off; start with --cache-pin-budget, the share of KV blocks that "
                       "they may hold");
    enum err_code rc = kvpool_pin(p, tokens, n_tokens, key, expires_us, &slot, &n, e);
    if (rc == ERR_BUSY && e != NULL)
        e->code = ERR_CONFLICT; /* waiting alone does not help: 409, not 429 */
    if (rc != ERR_OK)
        return rc == ERR_BUSY ? ERR_CONFLICT : rc;
    *out = t->pin[slot] = (struct srv_pin){ .number = ++t->last_number,
                                            .expires_us = expires_us,
                                            .n_tokens = n,
                                            .n_blocks = (uint32_t)(n_pinned(p) - before) };
    t->n++;
    return ERR_OK;
}

uint32_t srv_pins_remove(struct srv_pins *t, struct kvpool *p, uint64_t number)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->max; i++) {
        if (t->pin[i].number == 0 || (number != 0 && t->pin[i].number != number))
            continue;
        kvpool_unpin(p, i);
        t->pin[i].number = 0;
        n++;
    }
    t->n -= n;
    return n;
}

void srv_pins_expire(struct srv_pins *t, struct kvpool *p, uint64_t now_us)
{
    if (t->n == 0)
        return;
    for (uint32_t i = 0; i < t->max; i++)
        if (t->pin[i].number != 0 && t->pin[i].expires_us <= now_us)
            t->pin[i].number = 0;
    t->n -= kvpool_expire_pins(p, now_us);
}

static int by_number(const void *a, const void *b)
{
    const struct srv_pin *x = a, *y = b;

    return x->number < y->number ? -1 : x->number > y->number;
}

uint32_t srv_pins_list(const struct srv_pins *t, struct srv_pin *out, uint32_t cap)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->max && n < cap; i++)
        if (t->pin[i].number != 0)
            out[n++] = t->pin[i];
    qsort(out, n, sizeof *out, by_number);
    return n;
}
