/* sim.h: the pieces of the simulator.
 *
 * The real kvpool and scheduler, a modelled GPU and synthetic clients under a
 * virtual clock.  trace.c draws what clients send, gpu.c what a step costs,
 * tally.c what is measured, sim.c runs them.  One thread, one seed: the same
 * arguments give the same figures. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/sched.h"
#include "support/rng.h"

/* --- trace.c: clients ----------------------------------------------------- */

enum sim_kind { SIM_CHAT, SIM_RAG, SIM_AGENT, SIM_LONG, SIM_KINDS };

struct trace_config {
    uint32_t share[SIM_KINDS]; /* of new sessions, in percent */
    double rate;               /* new sessions a second       */
    double burst;              /* rate is multiplied by it ... */
    double burst_every_s, burst_for_s;
    uint32_t n_tenants;
    double zipf; /* exponent of the tenants' popularity */
    uint32_t max_model_len;
};

/* One client conversation; its text grows turn by turn. */
struct session {
    enum sim_kind kind;
    uint32_t tenant, turns_left;
    int32_t *text; /* owned; prompt of this turn, then its output */
    uint32_t n_text, cap_text;
    uint32_t n_prompt, n_output; /* of this turn; n_output: when it will stop */
    uint32_t heard;
    uint64_t arrived_us, last_us;
    req_id id;
    uint64_t salt;               /* makes its tokens its own */
    struct rng rng;              /* its own: what it says does not depend on the policy */
    struct sample_params params; /* tells the model whose row it is */
};

struct trace {
    struct trace_config cfg;
    struct rng rng;
    double *tenant_cdf;
    double next_s; /* next new session */
};

bool trace_open(struct trace *t, const struct trace_config *cfg, uint64_t seed);
void trace_close(struct trace *t);
/* When the next new session comes, in us. */
uint64_t trace_next_us(const struct trace *t);
/* That session, with its first turn's prompt (taken), or NULL: out of memory. */
struct session *trace_new(struct trace *t);
/* The next turn: appends what the client adds to the text; false: it is over. */
bool trace_turn(const struct trace *t, struct session *s);
/* Pause before the next turn. */
uint64_t trace_think_us(struct session *s);
void session_free(struct session *s);

/* --- gpu.c: time of a step ------------------------------------------------- */

struct gpu {
    double overhead_us, weight_bytes, flop_per_token, bytes_per_s, flop_per_s;
    double kv_bytes_per_token; /* all layers */
    double attn_flop;          /* for each query-key pair, all layers */
};

/* An 8-billion-parameter model in bf16 on one large GPU. */
extern const struct gpu gpu_8b;
uint64_t gpu_step_us(const struct gpu *g, const struct kv_layout *lay, const struct step_plan *p);

/* --- tally.c: figures -------------------------------------------------------- */

enum { TALLY_BUCKETS = 1200 };

/* Durations in buckets 2 % wide: any percentile, flat memory. */
struct tally {
    uint64_t n, bucket[TALLY_BUCKETS];
};

void tally_add(struct tally *t, uint64_t us);
/* Milliseconds below which `part` (0..1) of the durations lie. */
double tally_ms(const struct tally *t, double part);

/* Jain's index of the service that backlogged tenants got, window by window. */
struct fairness {
    uint32_t n_tenants;
    uint32_t *waiting, *least; /* requests not started; least in this window */
    double *served;
    uint64_t window_end_us;
    double sum;
    uint64_t n_windows;
};

bool fairness_open(struct fairness *f, uint32_t n_tenants);
void fairness_close(struct fairness *f);
void fairness_waits(struct fairness *f, uint32_t tenant, int by);
void fairness_serves(struct fairness *f, uint32_t tenant, uint32_t n_tokens);
void fairness_tick(struct fairness *f, uint64_t now_us);

#endif
