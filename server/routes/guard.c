/* guard.c: keys, and what makes a program one of this machine.  Any thread. */
#include "server/routes/guard.h"

#include <string.h>
#include <strings.h>

/* Equal, in time that does not tell how far. */
static bool same_key(const char *key, const char *given, size_t n)
{
    size_t len = strlen(key);
    unsigned char diff = len != n;

    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)(given[i] ^ key[len ? i % len : 0]);
    return diff == 0;
}

/* The request carries one of these keys. */
static bool has_key(const struct guard_request *r, const struct srv_list *keys)
{
    size_t n;
    const char *v = r->field(r->request, "authorization", &n);
    bool ok = false;

    if (v && n > 7 && strncasecmp(v, "Bearer ", 7) == 0) {
        v += 7;
        n -= 7;
    } else {
        v = r->field(r->request, "x-api-key", &n);
    }
    for (uint32_t i = 0; v && i < keys->n; i++)
        ok |= same_key(keys->item[i], v, n);
    return ok;
}

/* Whether a Host is a name of this machine for itself: no name that somebody else
 * has made to point here. */
static bool is_local_name(const char *host, size_t n)
{
    static const char *const names[] = { "localhost", "127.", "[::1]" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n >= strlen(names[i]) && strncasecmp(host, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static bool is_local_program(const struct guard_request *r)
{
    static const char *const relayed[] = { "origin", "forwarded", "x-forwarded-for", "x-real-ip" };
    const char *host;
    size_t n;

    if (r->peer == HTTP_PEER_REMOTE)
        return false;
    for (size_t i = 0; i < sizeof relayed / sizeof *relayed; i++)
        if (r->field(r->request, relayed[i], &n))
            return false;
    host = r->field(r->request, "host", &n);
    return host == NULL || r->peer == HTTP_PEER_UNIX || is_local_name(host, n);
}

enum guard_verdict guard_check(enum guard guard, const struct srv_list *keys,
                               const struct guard_request *r)
{
    if (guard == GUARD_NONE)
        return GUARD_PASS;
    if (keys->n > 0)
        return has_key(r, keys) ? GUARD_PASS : GUARD_WANTS_KEY;
    if (guard == GUARD_ADMIN && !is_local_program(r))
        return GUARD_LOCAL_ONLY;
    return GUARD_PASS;
}
