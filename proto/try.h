/* try.h: hand an error on to the caller; private to model/. */
#ifndef PROTO_TRY_H
#define PROTO_TRY_H

#include "proto/err.h"

/* Return the code of a call that failed.  For functions that own nothing at that
 * point; its struct err is filled already. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum err_code rc_ = (call);                                                                \
        if (rc_)                                                                                   \
            return rc_;                                                                            \
    } while (0)

#endif
