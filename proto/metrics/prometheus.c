/* prometheus.c: see prometheus.h.  The registry is three levels of lists built
 * once: families, their series, their values; label sets are rendered when a
 * series is added.  Updates are relaxed atomics, from any thread. */
#include "proto/metrics/prometheus.h"

#include <math.h>
#include <stdlib.h>

enum metric_kind { COUNTER, GAUGE, HISTOGRAM };

struct series {
    struct series *next;
    char *labels; /* owned: a="x",b="y"; may be empty */
    union {
        struct prom_counter counter;
        struct prom_gauge gauge;
        struct prom_histogram histogram;
    } u;
};

struct family {
    struct family *next;
    enum metric_kind kind;
    char *name, *help; /* owned */
    double *bound;     /* owned; histograms */
    uint32_t n_bounds;
    struct series *first, **last;
};

struct prom_registry {
    struct family *first, **last;
};

static uint64_t bits_of(double v)
{
    uint64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static double double_of(uint64_t b)
{
    double v;
    memcpy(&v, &b, sizeof v);
    return v;
}

/* ----------------------------------------------------------------- building */

enum err_code prom_create(struct prom_registry **out, struct err *e)
{
    struct prom_registry *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_nomem(e, "metrics registry", sizeof *r);
    r->last = &r->first;
    *out = r;
    return ERR_OK;
}

static void free_series(struct series *s, enum metric_kind kind)
{
    if (kind == HISTOGRAM)
        free(s->u.histogram.bucket);
    free(s->labels);
    free(s);
}

static void free_family(struct family *f)
{
    for (struct series *s = f->first, *next; s != NULL; s = next) {
        next = s->next;
        free_series(s, f->kind);
    }
    free(f->name);
    free(f->help);
    free(f->bound);
    free(f);
}

void prom_destroy(struct prom_registry *r)
{
    if (r == NULL)
        return;
    for (struct family *f = r->first, *next; f != NULL; f = next) {
        next = f->next;
        free_family(f);
    }
    free(r);
}

static bool is_name(const char *s, bool colon)
{
    if (*s == '\0' || (*s >= '0' && *s <= '9'))
        return false;
    for (; *s != '\0'; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_' ||
              (*s >= '0' && *s <= '9') || (colon && *s == ':')))
            return false;
    return true;
}

/* Label values and help texts: backslash and line break, values also quote. */
static void put_escaped(struct buf *o, const char *s, bool quote)
{
    for (; *s != '\0'; s++) {
        if (*s == '\\')
            BUF_LIT(o, "\\\\");
        else if (*s == '\n')
            BUF_LIT(o, "\\n");
        else if (*s == '"' && quote)
            BUF_LIT(o, "\\\"");
        else
            buf_put(o, s, 1);
    }
}

static enum err_code check_labels(const char *name, const struct prom_label *labels, uint32_t n,
                                  struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!is_name(labels[i].name, false) || strncmp(labels[i].name, "__", 2) == 0 ||
            strcmp(labels[i].name, "le") == 0)
            return err_set(e, ERR_INVALID, "metric %s: label \"%s\" is not a label name", name,
                           labels[i].name);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(labels[i].name, labels[j].name) == 0)
                return err_set(e, ERR_INVALID, "metric %s: label \"%s\" twice", name,
                               labels[i].name);
    }
    return ERR_OK;
}

/* a="x",b="y" as a string of its own; NULL: no memory. */
static char *label_text(const struct prom_label *labels, uint32_t n)
{
    struct buf o = { 0 };
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            BUF_LIT(&o, ",");
        buf_put(&o, labels[i].name, strlen(labels[i].name));
        BUF_LIT(&o, "=\"");
        put_escaped(&o, labels[i].value, true);
        BUF_LIT(&o, "\"");
    }
    buf_put(&o, "", 1);
    if (o.failed)
        buf_fini(&o);
    return o.p;
}

static enum err_code check_bounds(const char *name, const double *bounds, uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(bounds[i]) || (i > 0 && bounds[i] <= bounds[i - 1]))
            return err_set(e, ERR_INVALID,
                           "metric %s: bound %u is %g, expected finite and ascending", name, i,
                           bounds[i]);
    return ERR_OK;
}

struct description {
    const char *name, *help;
    enum metric_kind kind;
    const double *bounds;
    uint32_t n_bounds;
};

static struct family *find_family(const struct prom_registry *r, const char *name)
{
    struct family *f = r->first;
    while (f != NULL && strcmp(f->name, name) != 0)
        f = f->next;
    return f;
}

static struct family *make_family(const struct description *d, struct err *e)
{
    struct family *f = calloc(1, sizeof *f);
    if (f != NULL) {
        f->kind = d->kind;
        f->last = &f->first;
        f->name = strdup(d->name);
        f->help = strdup(d->help);
        f->n_bounds = d->n_bounds;
        if (d->n_bounds > 0 && (f->bound = malloc(d->n_bounds * sizeof *f->bound)) != NULL)
            memcpy(f->bound, d->bounds, d->n_bounds * sizeof *f->bound);
        if (f->name != NULL && f->help != NULL && (d->n_bounds == 0 || f->bound != NULL))
            return f;
        free_family(f);
    }
    err_nomem(e, "metric", sizeof *f);
    return NULL;
}

static enum err_code check_family(const struct family *f, const struct description *d,
                                  struct err *e)
{
    if (f->kind != d->kind || f->n_bounds != d->n_bounds ||
        (d->n_bounds > 0 && memcmp(f->bound, d->bounds, d->n_bounds * sizeof *f->bound) != 0))
        return err_set(e, ERR_INVALID, "metric %s: exists with another kind or other bounds",
                       d->name);
    return ERR_OK;
}

static struct series *make_series(const struct family *f, char *labels, struct err *e)
{
    struct series *s = calloc(1, sizeof *s);
    if (s != NULL && f->kind == HISTOGRAM) {
        struct prom_histogram *h = &s->u.histogram;
        h->n_bounds = f->n_bounds;
        h->bound = f->bound;
        h->bucket = calloc(f->n_bounds + 1, sizeof *h->bucket);
        if (h->bucket == NULL) {
            free(s);
            s = NULL;
        }
    }
    if (s == NULL)
        err_nomem(e, "metric series", sizeof *s);
    else
        s->labels = labels;
    return s;
}

/* Put the series with these labels into family f; labels is given on success. */
static enum err_code link_series(struct series **out, struct family *f, char *labels, struct err *e)
{
    for (const struct series *s = f->first; s != NULL; s = s->next)
        if (strcmp(s->labels, labels) == 0)
            return err_set(e, ERR_INVALID, "metric %s: {%s} exists", f->name, labels);
    struct series *s = make_series(f, labels, e);
    if (s == NULL)
        return ERR_NOMEM;
    *f->last = s;
    f->last = &s->next;
    *out = s;
    return ERR_OK;
}

static enum err_code add(struct series **out, struct prom_registry *r, const struct description *d,
                         const struct prom_label *labels, uint32_t n_labels, struct err *e)
{
    if (!is_name(d->name, true))
        return err_set(e, ERR_INVALID, "metric \"%s\": not a metric name", d->name);
    enum err_code rc = check_labels(d->name, labels, n_labels, e);
    if (!rc)
        rc = check_bounds(d->name, d->bounds, d->n_bounds, e);
    if (rc)
        return rc;
    struct family *f = find_family(r, d->name), *made = NULL;
    if (f != NULL && (rc = check_family(f, d, e)) != ERR_OK)
        return rc;
    if (f == NULL && (f = made = make_family(d, e)) == NULL)
        return ERR_NOMEM;
    char *text = label_text(labels, n_labels);
    rc = text == NULL ? err_nomem(e, "metric labels", 1) : link_series(out, f, text, e);
    if (rc) {
        free(text);
        if (made != NULL)
            free_family(made);
        return rc;
    }
    if (made != NULL) {
        *r->last = made;
        r->last = &made->next;
    }
    return ERR_OK;
}

enum err_code prom_add_counter(struct prom_counter **out, struct prom_registry *r, const char *name,
                               const char *help, const struct prom_label *labels, uint32_t n_labels,
                               struct err *e)
{
    struct description d = { .name = name, .help = help, .kind = COUNTER };
    struct series *s = NULL;
    enum err_code rc = add(&s, r, &d, labels, n_labels, e);
    if (!rc)
        *out = &s->u.counter;
    return rc;
}

enum err_code prom_add_gauge(struct prom_gauge **out, struct prom_registry *r, const char *name,
                             const char *help, const struct prom_label *labels, uint32_t n_labels,
                             struct err *e)
{
    struct description d = { .name = name, .help = help, .kind = GAUGE };
    struct series *s = NULL;
    enum err_code rc = add(&s, r, &d, labels, n_labels, e);
    if (!rc)
        *out = &s->u.gauge;
    return rc;
}

enum err_code prom_add_histogram(struct prom_histogram **out, struct prom_registry *r,
                                 const char *name, const char *help, const double *bounds,
                                 uint32_t n_bounds, const struct prom_label *labels,
                                 uint32_t n_labels, struct err *e)
{
    struct description d = {
        .name = name, .help = help, .kind = HISTOGRAM, .bounds = bounds, .n_bounds = n_bounds
    };
    struct series *s = NULL;
    enum err_code rc = add(&s, r, &d, labels, n_labels, e);
    if (!rc)
        *out = &s->u.histogram;
    return rc;
}

/* ----------------------------------------------------------------- updating */

void prom_counter_raise(struct prom_counter *c, uint64_t total)
{
    uint64_t now = atomic_load_explicit(&c->value, memory_order_relaxed);
    while (now < total && !atomic_compare_exchange_weak_explicit(
                              &c->value, &now, total, memory_order_relaxed, memory_order_relaxed)) {
    }
}

void prom_set(struct prom_gauge *g, double v)
{
    atomic_store_explicit(&g->bits, bits_of(v), memory_order_relaxed);
}

void prom_observe(struct prom_histogram *h, double v)
{
    prom_observe_n(h, v, 1);
}

void prom_observe_n(struct prom_histogram *h, double v, uint64_t n)
{
    uint32_t i = 0;
    while (i < h->n_bounds && !(v <= h->bound[i]))
        i++;
    atomic_fetch_add_explicit(&h->bucket[i], n, memory_order_relaxed);
    uint64_t old = atomic_load_explicit(&h->sum_bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&h->sum_bits, &old,
                                                  bits_of(double_of(old) + v * (double)n),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

uint64_t prom_counter_value(const struct prom_counter *c)
{
    return atomic_load_explicit(&c->value, memory_order_relaxed);
}

double prom_gauge_value(const struct prom_gauge *g)
{
    return double_of(atomic_load_explicit(&g->bits, memory_order_relaxed));
}

/* ---------------------------------------------------------------- rendering */

static void put_number(struct buf *o, double v)
{
    if (isnan(v))
        BUF_LIT(o, "NaN");
    else if (isinf(v) && v > 0)
        BUF_LIT(o, "+Inf");
    else if (isinf(v))
        BUF_LIT(o, "-Inf");
    else
        json_put_double(o, v);
}

/* name + suffix + {labels,le="bound"} + space */
static void put_series(struct buf *o, const struct family *f, const char *suffix,
                       const char *labels, const double *le)
{
    buf_put(o, f->name, strlen(f->name));
    buf_put(o, suffix, strlen(suffix));
    if (*labels != '\0' || le != NULL) {
        BUF_LIT(o, "{");
        buf_put(o, labels, strlen(labels));
        if (le != NULL) {
            if (*labels != '\0')
                BUF_LIT(o, ",");
            BUF_LIT(o, "le=\"");
            put_number(o, *le);
            BUF_LIT(o, "\"");
        }
        BUF_LIT(o, "}");
    }
    BUF_LIT(o, " ");
}

static void put_histogram(struct buf *o, const struct family *f, const struct series *s)
{
    const struct prom_histogram *h = &s->u.histogram;
    const double infinity = INFINITY;
    uint64_t total = 0;
    for (uint32_t i = 0; i <= h->n_bounds; i++) {
        total += atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        put_series(o, f, "_bucket", s->labels, i < h->n_bounds ? &h->bound[i] : &infinity);
        json_put_uint(o, total);
        BUF_LIT(o, "\n");
    }
    put_series(o, f, "_sum", s->labels, NULL);
    put_number(o, double_of(atomic_load_explicit(&h->sum_bits, memory_order_relaxed)));
    BUF_LIT(o, "\n");
    put_series(o, f, "_count", s->labels, NULL);
    json_put_uint(o, total);
    BUF_LIT(o, "\n");
}

static void put_family(struct buf *o, const struct family *f)
{
    static const char *const kinds[] = { "counter", "gauge", "histogram" };
    BUF_LIT(o, "# HELP ");
    buf_put(o, f->name, strlen(f->name));
    BUF_LIT(o, " ");
    put_escaped(o, f->help, false);
    BUF_LIT(o, "\n# TYPE ");
    buf_put(o, f->name, strlen(f->name));
    BUF_LIT(o, " ");
    buf_put(o, kinds[f->kind], strlen(kinds[f->kind]));
    BUF_LIT(o, "\n");
    for (const struct series *s = f->first; s != NULL; s = s->next) {
        if (f->kind == HISTOGRAM) {
            put_histogram(o, f, s);
            continue;
        }
        put_series(o, f, "", s->labels, NULL);
        if (f->kind == COUNTER)
            json_put_uint(o, prom_counter_value(&s->u.counter));
        else
            put_number(o, prom_gauge_value(&s->u.gauge));
        BUF_LIT(o, "\n");
    }
}

void prom_render(struct buf *o, const struct prom_registry *r)
{
    for (const struct family *f = r->first; f != NULL; f = f->next)
        put_family(o, f);
}
