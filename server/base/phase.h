/* phase.h: where the daemon is in its life, which decides what it accepts.
 *
 * One variable of main's, written by the I/O thread alone and read by it. */
#ifndef SERVER_BASE_PHASE_H
#define SERVER_BASE_PHASE_H

/* LOADING -loaded-> SERVING -SIGTERM-> DRAINING */
enum srv_phase { SRV_LOADING, SRV_SERVING, SRV_DRAINING };

/* Why work is refused in a phase, NULL while it is not. */
static inline const char *srv_phase_refusal(enum srv_phase p)
{
    return p == SRV_LOADING    ? "the model is still loading"
           : p == SRV_DRAINING ? "the server is shutting down"
                               : 0;
}

#endif
