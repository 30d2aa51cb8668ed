/* sampling.c: see sampling.h.  The vocabulary is never sorted: weights that no
 * filter can keep are left out in one pass, and among the rest each filter finds
 * its last item by a histogram and a selection inside one bucket. */
#include "model/cpu/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/cpu/kernels.h"
#include "proto/number/philox.h"
#include "proto/plan/sample_rules.h"

/* Buckets by exponent and 4 bits of mantissa of a float in [0, 1]. */
enum { BUCKET_SHIFT = 19, BUCKETS = (0x3F800000 >> BUCKET_SHIFT) + 1 };

struct item {
    float w;
    int32_t id;
};

struct scratch {
    float *logit, *weight;  /* [vocab] */
    uint32_t *seen;         /* [vocab], zero between rows */
    struct item *candidate; /* [vocab], by id */
    struct item *item;      /* [vocab], in selection's order */
    double mass[BUCKETS];
    uint32_t n[BUCKETS];
};

/* What came of a step. */
struct results {
    struct sampled *out; /* [max_outputs] */
    int32_t *top_token;  /* alternatives */
    float *top_logprob;
    size_t top_cap;
};

enum { RESULTS = 2 };

struct sampler {
    const struct cpu_kernels *k;
    struct workers *pool; /* borrowed */
    uint32_t vocab, max_outputs;
    struct scratch *scratch; /* [workers] */
    struct results results[RESULTS];
    uint32_t n_runs; /* so far: results are used in turn */
};

/* ---- order and thresholds ---- */

static bool before(struct item a, struct item b)
{
    return sample_before(a.w, a.id, b.w, b.id);
}

static void swap(struct item *a, struct item *b)
{
    struct item t = *a;
    *a = *b;
    *b = t;
}

/* Items [lo, hi) with a pivot's predecessors first; returns the pivot's place. */
static uint32_t partition(struct item *x, uint32_t lo, uint32_t hi)
{
    uint32_t mid = lo + (hi - lo) / 2, at = lo;
    if (before(x[hi - 1], x[mid]))
        swap(&x[hi - 1], &x[mid]);
    if (before(x[mid], x[lo]))
        swap(&x[mid], &x[lo]);
    if (before(x[hi - 1], x[mid]))
        swap(&x[hi - 1], &x[mid]);
    swap(&x[mid], &x[hi - 1]);
    for (uint32_t i = lo; i + 1 < hi; i++)
        if (before(x[i], x[hi - 1]))
            swap(&x[i], &x[at++]);
    swap(&x[at], &x[hi - 1]);
    return at;
}

/* The item at which, going down the order, `count` items or a weight of `mass`
 * is reached (whichever limit is in use). */
static struct item select_item(struct item *x, uint32_t n, uint32_t count, double mass)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint32_t at = partition(x, lo, hi);
        double sum = 0;
        for (uint32_t i = lo; i <= at; i++)
            sum += x[i].w;
        bool inside = count > 0 ? at - lo + 1 >= count : sum >= mass;
        if (inside) {
            /* The pivot itself may be the one: then nothing above it reaches. */
            if (count > 0 ? at - lo < count : sum - x[at].w < mass)
                return x[at];
            hi = at;
        } else {
            if (at + 1 == hi)
                return x[at];
            if (count > 0)
                count -= at - lo + 1;
            else
                mass -= sum;
            lo = at + 1;
        }
    }
    return x[lo];
}

static bool kept(float w, int32_t id, struct item last)
{
    return sample_kept(w, id, last.w, last.id);
}

static uint32_t bucket_of(float w)
{
    return float_to_bits(w) >> BUCKET_SHIFT;
}

/* The last of the top `count` candidates, or of the fewest that hold a weight of
 * `mass`, among those up to `last`: the bucket first, then the item in it. */
static struct item tighten(struct scratch *s, uint32_t n_candidates, struct item last,
                           uint32_t count, double mass)
{
    double above = 0;
    uint32_t n_above = 0, n = 0, b = BUCKETS, total = 0;
    memset(s->n, 0, sizeof s->n);
    memset(s->mass, 0, sizeof s->mass);
    for (uint32_t i = 0; i < n_candidates; i++) {
        struct item c = s->candidate[i];
        if (kept(c.w, c.id, last)) {
            uint32_t at = bucket_of(c.w);
            s->n[at]++;
            s->mass[at] += c.w;
            total++;
        }
    }
    if (total == 0 || count >= total)
        return last;
    while (b > 0) {
        b--;
        if (s->n[b] > 0 && (count > 0 ? n_above + s->n[b] >= count : above + s->mass[b] >= mass))
            break;
        n_above += s->n[b];
        above += s->mass[b];
    }
    for (uint32_t i = 0; i < n_candidates; i++) {
        struct item c = s->candidate[i];
        if (bucket_of(c.w) == b && kept(c.w, c.id, last))
            s->item[n++] = c;
    }
    /* None: rounding kept the sum below the mass, and all of it is needed. */
    return n == 0 ? last : select_item(s->item, n, count > 0 ? count - n_above : 0, mass - above);
}

/* A weight that at least `count` tokens reach, and few more. */
static float weight_of_top(struct scratch *s, uint32_t vocab, uint32_t count)
{
    uint32_t sum = 0, b = BUCKETS;
    memset(s->n, 0, sizeof s->n);
    for (uint32_t i = 0; i < vocab; i++)
        s->n[bucket_of(s->weight[i])]++;
    while (b > 0 && sum < count)
        sum += s->n[--b];
    return bits_to_float(b << BUCKET_SHIFT);
}

static uint32_t collect(struct scratch *s, uint32_t vocab, float cut)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab; i++)
        if (s->weight[i] >= cut)
            s->candidate[n++] = (struct item){ s->weight[i], (int32_t)i };
    return n;
}

/* ---- what changes logits ---- */

static bool changes_logits(const struct plan_output *o)
{
    const struct sample_params *p = o->params;
    return p->n_bias > 0 || plan_stops_masked(o) || sample_penalised(p);
}

static void apply_bias_and_mask(const struct plan_output *o, uint32_t vocab, float *y)
{
    const struct sample_params *p = o->params;
    sample_bias_and_mask(y, vocab, p->bias, p->n_bias, p->stop_ids,
                         plan_stops_masked(o) ? p->n_stop_ids : 0);
}

static void apply_penalties(const struct plan_output *o, uint32_t vocab, float *y, uint32_t *seen)
{
    const struct sample_params *p = o->params;
    if (!sample_penalised(p))
        return;
    for (uint32_t i = 0; i < o->n_history; i++) {
        uint32_t t = (uint32_t)o->history[i];
        if (t < vocab && i < o->n_prompt)
            seen[t] = SAMPLE_IN_PROMPT;
        else if (t < vocab)
            seen[t]++;
    }
    for (uint32_t i = 0; i < o->n_history; i++) {
        uint32_t t = (uint32_t)o->history[i];
        if (t >= vocab || seen[t] == 0)
            continue;
        y[t] = sample_penalise(y[t], seen[t], p->repetition_penalty, p->frequency_penalty,
                               p->presence_penalty);
        seen[t] = 0;
    }
}

/* ---- choosing ---- */

static int32_t first_equal(const float *x, float v)
{
    int32_t i = 0;
    while (x[i] != v)
        i++;
    return i;
}

static int32_t draw(const struct scratch *s, uint32_t n, const struct plan_output *o,
                    struct item last)
{
    double sum = 0, at = 0;
    float floor = sample_floor(o->params->min_p);
    int32_t pick = -1;
    for (uint32_t i = 0; i < n; i++)
        if (kept(s->candidate[i].w, s->candidate[i].id, last) && s->candidate[i].w >= floor)
            sum += s->candidate[i].w;
    double u = philox_unit(o->seed, o->n_history) * sum;
    for (uint32_t i = 0; i < n; i++) {
        struct item c = s->candidate[i];
        if (c.w > 0 && c.w >= floor && kept(c.w, c.id, last)) {
            at += c.w;
            pick = c.id;
            if (at > u)
                break;
        }
    }
    return pick;
}

/* y: the row after bias and penalties, its maximum top. */
static int32_t choose(const struct sampler *sm, struct scratch *s, const struct plan_output *o,
                      const float *y, float top)
{
    const struct sample_params *p = o->params;
    if (sample_greedy(p->temperature, p->top_k))
        return first_equal(y, top);
    struct item last = { 0, INT32_MAX };
    double share = sample_share(p->top_p);
    double total = sm->k->exp_sum(y, sm->vocab, top, 1 / p->temperature, s->weight);
    bool few = sample_cuts_top_k(p->top_k, sm->vocab);
    /* What lies below the cut, all of it together, cannot matter. */
    float cut = few         ? weight_of_top(s, sm->vocab, (uint32_t)p->top_k)
                : share < 1 ? (float)((1 - share) * total / sm->vocab)
                            : p->min_p;
    uint32_t n = collect(s, sm->vocab, cut);
    if (few) {
        last = tighten(s, n, last, (uint32_t)p->top_k, 0);
        total = 0;
        for (uint32_t i = 0; i < n; i++)
            if (kept(s->candidate[i].w, s->candidate[i].id, last))
                total += s->candidate[i].w;
    }
    if (share < 1)
        last = tighten(s, n, last, 0, share * total);
    return draw(s, n, o, last);
}

/* ---- logprobs ---- */

static void fill_top(const float *x, uint32_t vocab, uint32_t n, float log_sum, int32_t *token,
                     float *logprob)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (have == n && !(x[i] > logprob[n - 1]))
            continue;
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && x[i] > logprob[at - 1]; at--) {
            logprob[at] = logprob[at - 1];
            token[at] = token[at - 1];
        }
        logprob[at] = x[i];
        token[at] = (int32_t)i;
    }
    for (uint32_t i = 0; i < n; i++)
        logprob[i] -= log_sum;
}

struct run {
    struct sampler *sm;
    struct sampled *out;
    const struct step_plan *plan;
    const float *logits;
};

static void sample_row(void *ctx, uint32_t i, uint32_t worker)
{
    const struct run *r = ctx;
    struct sampler *sm = r->sm;
    struct scratch *s = &sm->scratch[worker];
    const struct plan_output *o = &r->plan->output[i];
    const float *x = r->logits + (size_t)i * sm->vocab, *y = x;
    struct sampled *out = &r->out[i];
    bool finite;
    float raw_top = sm->k->max(x, sm->vocab, &finite), top = raw_top;
    out->token = o->target;
    out->logprob = 0;
    out->failed = !finite || (o->target >= 0 && (uint32_t)o->target >= sm->vocab);
    if (!out->failed && o->target < 0) {
        if (changes_logits(o)) {
            memcpy(s->logit, x, sm->vocab * sizeof *x);
            apply_bias_and_mask(o, sm->vocab, s->logit);
            apply_penalties(o, sm->vocab, s->logit, s->seen);
            y = s->logit;
            top = sm->k->max(y, sm->vocab, &finite);
        }
        /* Masks are -infinity; all masked, or NaN, leaves nothing to choose. */
        out->token = top > -INFINITY && top < INFINITY ? choose(sm, s, o, y, top) : -1;
        out->failed = out->token < 0;
    }
    if (out->failed) {
        out->token = -1;
        out->n_top = 0;
        return;
    }
    if (o->params->n_logprobs < 0 && o->target < 0)
        return;
    float log_sum = raw_top + (float)log(sm->k->exp_sum(x, sm->vocab, raw_top, 1, NULL));
    out->logprob = x[out->token] - log_sum;
    if (out->n_top > 0)
        fill_top(x, sm->vocab, out->n_top, log_sum, (int32_t *)out->top_token,
                 (float *)out->top_logprob);
}

/* ---- create and destroy ---- */

static enum err_code reserve_top(const struct sampler *sm, struct results *r,
                                 const struct step_plan *plan, struct err *e)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_outputs; i++)
        n += plan_n_top(&plan->output[i], sm->vocab);
    if (n > r->top_cap) {
        int32_t *token = realloc(r->top_token, n * sizeof *token);
        if (token == NULL)
            return err_nomem(e, "logprob alternatives", n * sizeof *token);
        r->top_token = token;
        float *logprob = realloc(r->top_logprob, n * sizeof *logprob);
        if (logprob == NULL)
            return err_nomem(e, "logprob alternatives", n * sizeof *logprob);
        r->top_logprob = logprob;
        r->top_cap = n;
    }
    n = 0;
    for (uint32_t i = 0; i < plan->n_outputs; i++) {
        struct sampled *out = &r->out[i];
        out->n_top = plan_n_top(&plan->output[i], sm->vocab);
        out->top_token = r->top_token + n;
        out->top_logprob = r->top_logprob + n;
        n += out->n_top;
    }
    return ERR_OK;
}

enum err_code model_sampler_run(struct sampler *sm, const struct step_plan *plan,
                                const float *logits, const struct sampled **out, struct err *e)
{
    if (plan->n_outputs > sm->max_outputs)
        return err_set(e, ERR_LIMIT, "step plan: %u outputs, expected at most %u", plan->n_outputs,
                       sm->max_outputs);
    struct results *to = &sm->results[++sm->n_runs % RESULTS];
    enum err_code rc = reserve_top(sm, to, plan, e);
    if (rc)
        return rc;
    struct run r = { sm, to->out, plan, logits };
    /* A few rows of a small vocabulary are done sooner than a thread starts. */
    bool small = (uint64_t)plan->n_outputs * sm->vocab < 1 << 15;
    workers_run(small ? NULL : sm->pool, sample_row, &r, plan->n_outputs);
    *out = to->out;
    return ERR_OK;
}

enum err_code model_sampler_create(struct sampler **out, uint32_t vocab, uint32_t max_outputs,
                                   struct workers *pool, struct err *e)
{
    struct sampler *sm = calloc(1, sizeof *sm);
    if (sm == NULL)
        return err_nomem(e, "sampler", sizeof *sm);
    uint32_t n = workers_count(pool);
    sm->k = model_cpu_kernels_best();
    sm->pool = pool;
    sm->vocab = vocab;
    sm->max_outputs = max_outputs;
    sm->scratch = calloc(n, sizeof *sm->scratch);
    if (sm->scratch == NULL)
        goto fail;
    for (int i = 0; i < RESULTS; i++) {
        sm->results[i].out = calloc(max_outputs ? max_outputs : 1, sizeof(struct sampled));
        if (sm->results[i].out == NULL)
            goto fail;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct scratch *s = &sm->scratch[i];
        s->logit = malloc(vocab * sizeof *s->logit);
        s->weight = malloc(vocab * sizeof *s->weight);
        s->seen = calloc(vocab, sizeof *s->seen);
        s->item = malloc(vocab * sizeof *s->item);
        s->candidate = malloc(vocab * sizeof *s->candidate);
        if (s->logit == NULL || s->weight == NULL || s->seen == NULL || s->item == NULL ||
            s->candidate == NULL)
            goto fail;
    }
    *out = sm;
    return ERR_OK;

fail:
    model_sampler_destroy(sm);
    return err_nomem(e, "sampler scratch", (unsigned long long)n * vocab * 28);
}

void model_sampler_destroy(struct sampler *sm)
{
    if (sm == NULL)
        return;
    for (uint32_t i = 0; sm->scratch != NULL && i < workers_count(sm->pool); i++) {
        free(sm->scratch[i].logit);
        free(sm->scratch[i].weight);
        free(sm->scratch[i].seen);
        free(sm->scratch[i].item);
        free(sm->scratch[i].candidate);
    }
    free(sm->scratch);
    for (int i = 0; i < RESULTS; i++) {
        free(sm->results[i].out);
        free(sm->results[i].top_token);
        free(sm->results[i].top_logprob);
    }
    free(sm);
}
