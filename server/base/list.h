/* list.h: a short list of strings that an operator gave.  Owns nothing; any thread. */
#ifndef SERVER_BASE_LIST_H
#define SERVER_BASE_LIST_H

#include <stdint.h>

enum { SRV_LIST_MAX = 16 };

struct srv_list {
    const char *item[SRV_LIST_MAX];
    uint32_t n;
};

#endif
