/* http_rig.h: an HTTP server without a network: clients on socket pairs, an
 * application that echoes, and a loop that is turned by hand, a bounded number of
 * times.  One thread. */
#ifndef TESTS_SUPPORT_HTTP_RIG_H
#define TESTS_SUPPORT_HTTP_RIG_H

#include "server/http/connection.h"

enum { RIG_HELD = 8 };

/* The application answers by path:
 *   /echo     200 with the body
 *   /big      200 with as many bytes as the query says
 *   /stream   a stream of one piece a byte of the body
 *   /hold     later: the exchange waits in held[]
 *   /none     204
 *   /refuse   refused at its head with 403, when the application is asked there
 *   others    404 */
struct rig {
    uv_loop_t loop;
    uv_timer_t tick; /* so that a turn that waits ends */
    struct http_server *server;
    struct srv_log log;
    struct srv_ids ids;
    int log_fd;
    uint32_t n_heads, n_requests, n_gone;
    struct exchange *held[RIG_HELD]; /* in the order of arrival; NULL: gone */
    uint32_t n_held;
    uint64_t began_us; /* of the last request */
    char id[REQUEST_ID_BYTES + 1];
    enum http_peer peer;
};

/* cfg: limits and timeouts; what is 0 gets a generous value, and the rest is set
 * here.  NULL: all generous. */
void rig_open(struct rig *r, const struct http_config *cfg);
/* Close everything; fails the test when a connection or the loop is left over. */
void rig_close(struct rig *r);

/* A client's end of a connection, and all that it has read. */
struct client {
    int fd;
    struct conn *conn; /* the server's end; gone once the server has closed it */
    struct buf in;
    bool eof; /* the server has ended its output */
};
void rig_connect(struct rig *r, struct client *c, enum http_peer peer);
void client_close(struct client *c);
/* Take what has arrived; returns what was read so far, NUL-terminated. */
const char *client_read(struct client *c);

/* Turn the loop until what can be done without waiting is done. */
void rig_turn(struct rig *r);
/* Turn it, waiting, until *flag or, after a bounded number of turns, fail. */
void rig_wait(struct rig *r, bool (*done)(struct rig *r, void *ctx), void *ctx);

/* Send bytes, turn, read: what the client has read so far. */
const char *rig_say(struct rig *r, struct client *c, const char *bytes, size_t n);
const char *rig_tell(struct rig *r, struct client *c, const char *text);
/* What was logged so far, NUL-terminated, into out. */
const char *rig_log(struct rig *r, char *out, size_t n);

#endif
