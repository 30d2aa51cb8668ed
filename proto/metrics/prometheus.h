/* prometheus.h: counters, gauges and histograms, and their text exposition.
 *
 * A registry is filled once, before threads start (prom_add_*); from then on
 * its shape is fixed and its values are relaxed atomics: any thread may update,
 * any thread may render, none waits.  A rendered histogram is consistent in
 * itself (_count equals the +Inf bucket); different metrics may be a few
 * updates apart.  Series handles are borrowed from the registry. */
#ifndef PROTO_METRICS_PROMETHEUS_H
#define PROTO_METRICS_PROMETHEUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/text/json.h"

#define PROM_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct prom_registry;

/* Name and value of a label; borrowed for the call. */
struct prom_label {
    const char *name, *value;
};

/* One series of each kind. */
struct prom_counter {
    _Atomic uint64_t value;
};
struct prom_gauge {
    _Atomic uint64_t bits; /* of a double */
};
struct prom_histogram {
    uint32_t n_bounds;
    const double *bound;       /* [n_bounds] ascending; +Inf is implied     */
    _Atomic uint64_t *bucket;  /* [n_bounds + 1] not cumulative             */
    _Atomic uint64_t sum_bits; /* of a double                               */
};

MUST_USE enum err_code prom_create(struct prom_registry **out, struct err *e);
void prom_destroy(struct prom_registry *r);

/* Add a series with labels[0..n).  The first of a family gives help and kind;
 * later ones must agree in kind (and bounds).  A counter's name is given with
 * its _total.  ERR_INVALID: a name or label that the format forbids, a series
 * there already, a kind that differs; bounds not ascending.  Everything is
 * copied. */
MUST_USE enum err_code prom_add_counter(struct prom_counter **out, struct prom_registry *r,
                                        const char *name, const char *help,
                                        const struct prom_label *labels, uint32_t n_labels,
                                        struct err *e);
MUST_USE enum err_code prom_add_gauge(struct prom_gauge **out, struct prom_registry *r,
                                      const char *name, const char *help,
                                      const struct prom_label *labels, uint32_t n_labels,
                                      struct err *e);
MUST_USE enum err_code prom_add_histogram(struct prom_histogram **out, struct prom_registry *r,
                                          const char *name, const char *help, const double *bounds,
                                          uint32_t n_bounds, const struct prom_label *labels,
                                          uint32_t n_labels, struct err *e);

static inline void prom_inc(struct prom_counter *c, uint64_t by)
{
    atomic_fetch_add_explicit(&c->value, by, memory_order_relaxed);
}
/* Take over a total counted elsewhere; never goes back. */
void prom_counter_raise(struct prom_counter *c, uint64_t total);
void prom_set(struct prom_gauge *g, double v);
void prom_observe(struct prom_histogram *h, double v);
/* n observations of the same value. */
void prom_observe_n(struct prom_histogram *h, double v, uint64_t n);

uint64_t prom_counter_value(const struct prom_counter *c);
double prom_gauge_value(const struct prom_gauge *g);

/* Append the exposition (text format 0.0.4), families in order of addition. */
void prom_render(struct buf *o, const struct prom_registry *r);

#endif
