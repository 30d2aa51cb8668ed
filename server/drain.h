/* drain.h: leaving: SIGTERM or SIGINT stops new work, lets running requests
 * finish for --shutdown-timeout seconds, cancels what is left and exits 0; a
 * second signal exits at once.  I/O thread. */
#ifndef SERVER_DRAIN_H
#define SERVER_DRAIN_H

struct srv;

/* Install the signal handlers; uv's error number or 0. */
int drain_watch(struct srv *srv);
void drain_begin(struct srv *srv);
/* Something ended: stop the loop when it was the last. */
void drain_check(struct srv *srv);
/* Stop now with this exit code (loading failed). */
void drain_abort(struct srv *srv, int exit_code);

#endif
