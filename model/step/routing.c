/* routing.c: see routing.h. */
#include "model/step/routing.h"

#include <math.h>
#include <string.h>

static void softmax(float *x, uint32_t n)
{
    float top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - top);
        sum += x[i];
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* The k largest of x, best first, ties to the lowest index; -INFINITY entries
 * are taken last.  `taken` must be zero and is dirtied. */
static void top_k(const float *x, uint32_t n, uint32_t k, unsigned char *taken, uint32_t *out)
{
    for (uint32_t j = 0; j < k; j++) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!taken[i] && (best == n || x[i] > x[best]))
                best = i;
        taken[best] = 1;
        out[j] = best;
    }
}

/* A group's score: its maximum, or the sum of its two best. */
static float group_score(const float *x, uint32_t n, bool two)
{
    float a = -INFINITY, b = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] > a) {
            b = a;
            a = x[i];
        } else if (x[i] > b) {
            b = x[i];
        }
    }
    return two ? a + b : a;
}

/* Experts outside the best groups become -INFINITY. */
static void keep_groups(const struct moe_config *m, float *score)
{
    float of[ROUTE_EXPERTS] = { 0 };
    unsigned char taken[ROUTE_EXPERTS] = { 0 };
    uint32_t chosen[ROUTE_EXPERTS], per = m->n_experts / m->n_groups;
    if (m->n_groups == 1)
        return;
    for (uint32_t g = 0; g < m->n_groups; g++)
        of[g] = group_score(score + (size_t)g * per, per, m->routing == ROUTE_SIGMOID_BIAS);
    top_k(of, m->n_groups, m->top_groups, taken, chosen);
    for (uint32_t g = 0; g < m->n_groups; g++)
        if (!taken[g])
            for (uint32_t i = 0; i < per; i++)
                score[g * per + i] = -INFINITY;
}

void model_route_token(const struct moe_config *m, float *logits, const float *choice_bias,
                       uint32_t expert[ROUTE_TOP], float weight[ROUTE_TOP])
{
    float score[ROUTE_EXPERTS], sum = 0;
    unsigned char taken[ROUTE_EXPERTS] = { 0 };
    uint32_t n = m->n_experts, k = m->top_k;
    if (m->routing == ROUTE_SIGMOID_BIAS) {
        for (uint32_t i = 0; i < n; i++)
            logits[i] = 1 / (1 + expf(-logits[i]));
    } else if (m->routing != ROUTE_TOPK_SOFTMAX) {
        softmax(logits, n);
    }
    for (uint32_t i = 0; i < n; i++)
        score[i] = choice_bias ? logits[i] + choice_bias[i] : logits[i];
    keep_groups(m, score);
    top_k(score, n, k, taken, expert);
    for (uint32_t j = 0; j < k; j++) {
        weight[j] = logits[expert[j]];
        sum += weight[j];
    }
    if (m->routing == ROUTE_TOPK_SOFTMAX)
        softmax(weight, k);
    for (uint32_t j = 0; j < k; j++) {
        if (m->norm_topk)
            weight[j] /= sum + 1e-20f;
        weight[j] *= m->scale;
    }
}
