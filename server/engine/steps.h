/* steps.h: the flight recorder: what the last steps were made of, how long each
 * part took, and what was decided.
 *
 * A ring of steps and a ring of their rows, written by the engine thread alone
 * and never growing: the oldest go first, and a step may outlive its rows. */
#ifndef SERVER_ENGINE_STEPS_H
#define SERVER_ENGINE_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/sched.h"

enum srv_step_state { STEP_PLANNED, STEP_LAUNCHED, STEP_COLLECTED, STEP_DONE, STEP_FAILED };

struct srv_step {
    uint64_t step; /* 0: none */
    enum srv_step_state state;
    /* When it had been planned, given to the device, and collected, and when it
     * was committed; planning began at began_us.  srv_now_us's clock; 0: not yet. */
    uint64_t began_us, planned_us, launched_us, collected_us, ended_us;
    uint32_t n_rows, n_tokens, n_decodes, n_outputs, n_copies, max_kv_len;
    /* While it was planned: sequences preempted; once it was: blocks that nobody
     * holds.  After its commit: sequences ended since the step before was committed,
     * and what was left. */
    uint32_t n_preempted, n_idle_blocks;
    uint32_t n_finished[FINISH_ERROR + 1], n_running, n_waiting;
    uint64_t first_row; /* number of its first row, rows ever counted */
};

/* One row: n tokens behind `past` of a sequence, of which `left` known ones are
 * then still to be computed. */
struct srv_step_row {
    req_id id;
    uint32_t choice, past, n, left;
};

struct srv_steps;

/* A recorder of n_steps, each of at most max_rows; 0 steps record nothing. */
MUST_USE enum err_code srv_steps_create(struct srv_steps **out, uint32_t n_steps, uint32_t max_rows,
                                        struct err *e);
void srv_steps_destroy(struct srv_steps *t);

/* The plan that sched_next just returned; planning began at began_us. */
void srv_steps_planned(struct srv_steps *t, const struct sched *s, const struct kvpool *p,
                       const struct step_plan *plan, uint64_t began_us, uint64_t now_us);
/* It was given to the device (STEP_LAUNCHED), or its results came (STEP_COLLECTED). */
void srv_steps_mark(struct srv_steps *t, uint64_t step, enum srv_step_state state, uint64_t now_us);
/* It was committed, or aborted. */
void srv_steps_ended(struct srv_steps *t, const struct sched *s, uint64_t step, bool failed,
                     uint64_t now_us);

/* The last n steps, oldest first, and the rows that are left of them: step i's
 * are row[step[i].first_row] on, n_rows of them, or none where first_row is
 * UINT64_MAX. */
struct srv_steps_copy {
    struct srv_step *step; /* owned; free */
    struct srv_step_row *row;
    uint32_t n_steps, n_rows;
};
MUST_USE enum err_code srv_steps_copy(const struct srv_steps *t, uint32_t n, bool with_rows,
                                      struct srv_steps_copy *out, struct err *e);
void srv_steps_copy_fini(struct srv_steps_copy *c);

#endif
