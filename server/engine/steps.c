/* steps.c: the rings of the flight recorder. */
#include "server/engine/steps.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_A_STEP = 32 }; /* kept, on average; a busy server keeps rows of fewer steps */

struct srv_steps {
    struct srv_step *step; /* [cap]; step s is at s % cap */
    uint32_t cap;
    struct srv_step_row *row; /* [cap_rows]; row r is at r % cap_rows */
    uint64_t cap_rows, n_rows;
    uint64_t last; /* step recorded */
    uint64_t finished[FINISH_ERROR + 1];
    uint64_t preempted;
};

enum err_code srv_steps_create(struct srv_steps **out, uint32_t n_steps, uint32_t max_rows,
                               struct err *e)
{
    struct srv_steps *t = calloc(1, sizeof *t);

    if (t == NULL)
        return err_nomem(e, "flight recorder", sizeof *t);
    t->cap = n_steps;
    t->cap_rows = (uint64_t)n_steps * ROWS_A_STEP;
    if (t->cap_rows < max_rows)
        t->cap_rows = max_rows;
    if (n_steps > 0) {
        t->step = calloc(n_steps, sizeof *t->step);
        t->row = calloc(t->cap_rows, sizeof *t->row);
    }
    if (n_steps > 0 && (t->step == NULL || t->row == NULL)) {
        srv_steps_destroy(t);
        return err_nomem(e, "flight recorder",
                         n_steps * sizeof(struct srv_step) +
                             (size_t)n_steps * ROWS_A_STEP * sizeof(struct srv_step_row));
    }
    *out = t;
    return ERR_OK;
}

void srv_steps_destroy(struct srv_steps *t)
{
    if (t == NULL)
        return;
    free(t->step);
    free(t->row);
    free(t);
}

/* The record of a step; NULL when there is none (any more). */
static struct srv_step *find(const struct srv_steps *t, uint64_t step)
{
    struct srv_step *r = t->cap > 0 ? &t->step[step % t->cap] : NULL;

    return r != NULL && r->step == step && step > 0 ? r : NULL;
}

void srv_steps_planned(struct srv_steps *t, const struct sched *s, const struct kvpool *p,
                       const struct step_plan *plan, uint64_t began_us, uint64_t now_us)
{
    struct sched_stats st;

    if (t->cap == 0)
        return;
    sched_stats(s, &st);
    struct srv_step *r = &t->step[plan->step % t->cap];
    *r = (struct srv_step){ .step = plan->step,
                            .state = STEP_PLANNED,
                            .began_us = began_us,
                            .planned_us = now_us,
                            .n_rows = plan->n_rows,
                            .n_tokens = plan->n_tokens,
                            .n_outputs = plan->n_outputs,
                            .n_copies = plan->n_copies,
                            .max_kv_len = plan->max_kv_len,
                            .n_preempted = (uint32_t)(st.preemptions - t->preempted),
                            .n_idle_blocks = kvpool_idle(p),
                            .n_running = st.n_running,
                            .n_waiting = st.n_waiting,
                            .first_row = t->n_rows };
    t->preempted = st.preemptions;
    t->last = plan->step;
    for (uint32_t i = 0; i < plan->n_rows; i++) {
        struct sched_row row = sched_plan_row(s, plan, i);
        t->row[t->n_rows++ % t->cap_rows] = (struct srv_step_row){
            .id = row.id,
            .choice = row.choice,
            .past = (uint32_t)plan->past_seqlens[i],
            .n = (uint32_t)(plan->cu_seqlens[i + 1] - plan->cu_seqlens[i]),
            .left = row.left,
        };
        r->n_decodes += row.decodes;
    }
}

void srv_steps_mark(struct srv_steps *t, uint64_t step, enum srv_step_state state, uint64_t now_us)
{
    struct srv_step *r = find(t, step);

    if (r == NULL)
        return;
    r->state = state;
    *(state == STEP_LAUNCHED ? &r->launched_us : &r->collected_us) = now_us;
}

void srv_steps_ended(struct srv_steps *t, const struct sched *s, uint64_t step, bool failed,
                     uint64_t now_us)
{
    struct srv_step *r = find(t, step);
    struct sched_stats st;

    if (r == NULL)
        return;
    sched_stats(s, &st);
    r->state = failed ? STEP_FAILED : STEP_DONE;
    r->ended_us = now_us;
    for (int i = 0; i <= FINISH_ERROR; i++) {
        r->n_finished[i] = (uint32_t)(st.finished[i] - t->finished[i]);
        t->finished[i] = st.finished[i];
    }
    r->n_running = st.n_running;
    r->n_waiting = st.n_waiting;
}

static bool has_rows(const struct srv_steps *t, const struct srv_step *r)
{
    return r->first_row + t->cap_rows >= t->n_rows;
}

enum err_code srv_steps_copy(const struct srv_steps *t, uint32_t n, bool with_rows,
                             struct srv_steps_copy *out, struct err *e)
{
    uint64_t first;
    uint32_t n_rows = 0;

    n = n < t->cap ? n : t->cap;
    first = t->last > n ? t->last - n + 1 : 1;
    n = t->last > 0 ? (uint32_t)(t->last - first + 1) : 0;
    for (uint64_t s = first; with_rows && s < first + n; s++)
        n_rows += has_rows(t, &t->step[s % t->cap]) ? t->step[s % t->cap].n_rows : 0;
    *out = (struct srv_steps_copy){ .step = calloc(n + 1, sizeof *out->step),
                                    .row = calloc(n_rows + 1, sizeof *out->row) };
    if (out->step == NULL || out->row == NULL) {
        srv_steps_copy_fini(out);
        return err_nomem(e, "recorded steps", n * sizeof *out->step + n_rows * sizeof *out->row);
    }
    for (uint64_t s = first; s < first + n; s++) {
        const struct srv_step *r = &t->step[s % t->cap];
        struct srv_step *to = &out->step[out->n_steps++];
        *to = *r;
        to->first_row = UINT64_MAX;
        if (!with_rows || !has_rows(t, r))
            continue;
        to->first_row = out->n_rows;
        for (uint32_t i = 0; i < r->n_rows; i++)
            out->row[out->n_rows++] = t->row[(r->first_row + i) % t->cap_rows];
    }
    return ERR_OK;
}

void srv_steps_copy_fini(struct srv_steps_copy *c)
{
    free(c->step);
    free(c->row);
    *c = (struct srv_steps_copy){ 0 };
}
