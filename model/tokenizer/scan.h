/* scan.h: hand-written equals of the pre-tokenizer patterns that
 * most models use, several times faster than a regular expression engine.
 *
 * The tests compare each with the engine on the pattern it stands for.  Pure
 * functions over constant tables; any thread.  Private to model/tokenizer/. */
#ifndef MODEL_TOKENIZER_SCAN_H
#define MODEL_TOKENIZER_SCAN_H

#include <stdbool.h>
#include <stddef.h>

enum { TK_SCAN_NONE = -1 };

/* The scanner whose matches equal those of the pattern, or TK_SCAN_NONE. */
int tk_scan_recognise(const char *pat, size_t n);
/* First match in s[0..n) (valid UTF-8) from `from` on; false: none. */
bool tk_scan(int scanner, const char *s, size_t n, size_t from, size_t *at, size_t *end);
/* The pattern that scanner k stands for; NULL from the first k that is none. */
const char *tk_scan_pattern(int k);

#endif
