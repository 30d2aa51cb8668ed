/* pins.h: the operator's pins on cached prefixes, by names that are never used
 * twice, each until its time is up.
 *
 * A pool's pin is a slot that the next pin takes again; here each gets a number
 * of its own, so that a late unpin cannot hit somebody else's.  Engine thread
 * alone. */
#ifndef SERVER_ENGINE_PINS_H
#define SERVER_ENGINE_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool/kvpool.h"

struct srv_pin {
    uint64_t number;     /* from 1; 0: the slot is empty */
    uint64_t expires_us; /* on srv_now_us's clock        */
    uint32_t n_tokens;   /* held: whole blocks           */
    uint32_t n_blocks;
};

struct srv_pins;

MUST_USE enum err_code srv_pins_create(struct srv_pins **out, uint32_t max_pins, struct err *e);
void srv_pins_destroy(struct srv_pins *t);

/* kvpool_pin until expires_us.  ERR_CONFLICT: pins are off (max_pins or the
 * budget is 0), or no room is left; ERR_NOT_FOUND: nothing of it is cached. */
MUST_USE enum err_code srv_pins_add(struct srv_pins *t, struct kvpool *p, const int32_t *tokens,
                                    uint32_t n_tokens, const struct kvpool_key *key,
                                    uint64_t expires_us, struct srv_pin *out, struct err *e);
/* Unpin one, or all (number 0); how many there were. */
uint32_t srv_pins_remove(struct srv_pins *t, struct kvpool *p, uint64_t number);
/* Unpin what is due; cheap when there are no pins. */
void srv_pins_expire(struct srv_pins *t, struct kvpool *p, uint64_t now_us);

/* The pins there are, by number, into out[]; how many. */
uint32_t srv_pins_list(const struct srv_pins *t, struct srv_pin *out, uint32_t cap);

#endif
