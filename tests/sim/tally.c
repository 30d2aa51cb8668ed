/* tally.c: see sim.h. */
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_US = 10 * 1000 * 1000 };

void tally_add(struct tally *t, uint64_t us)
{
    uint32_t i = us < 1 ? 0 : (uint32_t)(log((double)us) / log(1.02));
    t->bucket[i < TALLY_BUCKETS ? i : TALLY_BUCKETS - 1]++;
    t->n++;
}

double tally_ms(const struct tally *t, double part)
{
    uint64_t want = (uint64_t)((double)t->n * part), seen = 0;
    for (uint32_t i = 0; i < TALLY_BUCKETS; i++) {
        seen += t->bucket[i];
        if (seen > want)
            return pow(1.02, i + 0.5) / 1000;
    }
    return 0;
}

bool fairness_open(struct fairness *f, uint32_t n_tenants)
{
    *f = (struct fairness){ .n_tenants = n_tenants, .window_end_us = WINDOW_US };
    f->waiting = calloc(n_tenants, sizeof *f->waiting);
    f->least = calloc(n_tenants, sizeof *f->least);
    f->served = calloc(n_tenants, sizeof *f->served);
    return f->waiting != NULL && f->least != NULL && f->served != NULL;
}

void fairness_close(struct fairness *f)
{
    free(f->waiting);
    free(f->least);
    free(f->served);
}

void fairness_waits(struct fairness *f, uint32_t tenant, int by)
{
    f->waiting[tenant] += (uint32_t)by;
    if (f->waiting[tenant] < f->least[tenant])
        f->least[tenant] = f->waiting[tenant];
}

void fairness_serves(struct fairness *f, uint32_t tenant, uint32_t n_tokens)
{
    f->served[tenant] += n_tokens;
}

/* Tenants that had a request waiting all through the window are compared. */
static void close_window(struct fairness *f)
{
    double sum = 0, squares = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        if (f->least[i] > 0) {
            n++;
            sum += f->served[i];
            squares += f->served[i] * f->served[i];
        }
        f->least[i] = f->waiting[i];
        f->served[i] = 0;
    }
    if (n >= 2 && squares > 0) {
        f->sum += sum * sum / (n * squares);
        f->n_windows++;
    }
}

void fairness_tick(struct fairness *f, uint64_t now_us)
{
    if (now_us < f->window_end_us)
        return;
    close_window(f);
    f->window_end_us = now_us + WINDOW_US;
}
