/* template_fuzz.c: any bytes as a chat template: an error or a text whose user
 * spans are ascending and inside it, never a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/template_fuzz.h"
#include "model/chat/template.h"
#include "proto/text/json.h"

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\"You are terse.\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"caf\\u00e9 <|im_end|>\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"x\":1.5,\"z\":-12345678901234567890123,\"y\":[true,null,\"s\"]}}}]},{"
    "\"role\":\"tool\",\"content\":\"4\"}]";

int template_fuzz_one(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1);
    if (text == NULL)
        return 0;
    if (n > 0)
        memcpy(text, data, n);
    text[n] = '\0';
    struct chat_template *t;
    struct err e = { 0 };
    if (chat_template_parse(&t, "fuzz", text, &e) == ERR_OK) {
        struct json_doc messages;
        if (json_parse(&messages, conversation, sizeof conversation - 1, 0, &e))
            abort();
        struct chat_input in = { .messages = messages.value,
                                 .tools = messages.value,
                                 .bos_token = "<s>",
                                 .eos_token = "</s>",
                                 .add_generation_prompt = true };
        struct chat_rendered r;
        if (chat_template_render(t, &in, &r, &e) == ERR_OK) {
            size_t at = 0;
            for (size_t i = 0; i < r.n_user; i++) {
                if (r.user[i].start < at || r.user[i].end <= r.user[i].start || r.user[i].end > r.n)
                    abort();
                at = r.user[i].end;
            }
            chat_rendered_fini(&r);
        } else if (e.message[0] == '\0') {
            abort();
        }
        json_doc_fini(&messages);
        chat_template_free(t);
    } else if (e.message[0] == '\0') {
        abort();
    }
    free(text);
    return 0;
}
