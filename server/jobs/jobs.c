/* jobs.c: jobs as libuv's work requests.  Owns nothing.  The loop's thread. */
#include "server/jobs/jobs.h"

#include <assert.h>

void work_begin(struct work_count *w)
{
    w->n++;
}

void work_end(struct work_count *w)
{
    assert(w->n > 0);
    w->n--;
    if (w->ended)
        w->ended(w->ctx);
}

void jobs_init(struct jobs *q, uv_loop_t *loop, uint32_t max, struct work_count *work)
{
    *q = (struct jobs){ .loop = loop, .work = work, .max = max };
}

static void on_run(uv_work_t *w)
{
    struct job *j = w->data;

    j->run(j);
}

static void on_done(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct jobs *q = j->jobs;
    bool cancelled = j->state == JOB_CANCELLED;

    (void)status; /* UV_ECANCELED comes only after job_cancel */
    j->state = JOB_IDLE;
    q->n--;
    j->done(j, cancelled); /* may free j */
    if (!cancelled)
        work_end(q->work);
}

enum err_code jobs_submit(struct jobs *q, struct job *j, void (*run)(struct job *),
                          void (*done)(struct job *, bool cancelled), struct err *e)
{
    assert(j->state == JOB_IDLE);
    if (q->n >= q->max)
        return err_set(e, ERR_BUSY, "%u requests wait to be read already", q->max);
    j->request.data = j;
    j->jobs = q;
    j->run = run;
    j->done = done;
    atomic_store(&j->stop, false);
    if (uv_queue_work(q->loop, &j->request, on_run, on_done) != 0)
        return err_set(e, ERR_NOMEM, "no thread takes the request");
    j->state = JOB_WANTED;
    q->n++;
    work_begin(q->work);
    return ERR_OK;
}

void job_cancel(struct job *j)
{
    if (j->state != JOB_WANTED)
        return;
    j->state = JOB_CANCELLED;
    atomic_store(&j->stop, true);
    uv_cancel((uv_req_t *)&j->request); /* refused where it runs already */
    work_end(j->jobs->work);
}

bool job_stopped(const struct job *j)
{
    return atomic_load_explicit(&j->stop, memory_order_relaxed);
}
