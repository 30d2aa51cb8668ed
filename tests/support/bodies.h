/* bodies.h: request bodies that use every field, as seeds for mutation. */
#ifndef TESTS_SUPPORT_BODIES_H
#define TESTS_SUPPORT_BODIES_H

#include "proto/openai/request.h"

static const struct {
    enum oai_kind kind;
    const char *text;
} seed_bodies[] = {
    { OAI_COMPLETION,
      "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"max_tokens\":5,\"temperature\":0.5,"
      "\"top_p\":0.9,\"top_k\":40,\"min_p\":0.1,\"n\":2,\"best_of\":2,\"seed\":-3,"
      "\"stop\":[\"a\",\"\\u0000\"],\"stop_token_ids\":[9],\"stream\":true,"
      "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":false},"
      "\"logprobs\":3,\"echo\":true,\"logit_bias\":{\"99\":-100,\"3\":2.5e0},"
      "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5}" },
    { OAI_COMPLETION,
      "{\"prompt\":\"caf\xc3\xa9 \\ud83d\\ude00\\n\",\"min_tokens\":2,\"max_tokens\":16.0,"
      "\"ignore_eos\":true,\"return_token_ids\":true,\"include_stop_str_in_output\":true,"
      "\"skip_special_tokens\":false,\"add_special_tokens\":false,"
      "\"truncate_prompt_tokens\":-1,\"cache_salt\":\"s\",\"priority\":-7,\"user\":\"u\","
      "\"cache\":true,\"prompt_logprobs\":1,\"suffix\":null,\"unknown\":[{\"x\":[[]]}]}" },
    { OAI_CHAT,
      "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
      "[{\"type\":\"text\",\"text\":\"a\"},\"b\"]},{\"role\":\"assistant\",\"content\":null,"
      "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
      "\"arguments\":\"{\\\"x\\\": 1}\"}}]},{\"role\":\"tool\",\"content\":\"r\"}],"
      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
      "\"object\"}}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
      "\"logprobs\":true,\"top_logprobs\":2,\"max_completion_tokens\":9,\"response_format\":"
      "{\"type\":\"text\"},\"documents\":[{\"t\":1}],\"chat_template_kwargs\":{\"k\":[1.5]}}" },
    { OAI_CHAT,
      "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"add_generation_prompt\":false,"
      "\"continue_final_message\":true,\"parallel_tool_calls\":false,\"tool_choice\":\"none\"}" },
    { OAI_TOKENIZE, "{\"prompt\":\"x y\",\"return_token_strs\":true,\"model\":null}" },
    { OAI_DETOKENIZE, "{\"tokens\":[1,2,3],\"skip_special_tokens\":true}" },
    { OAI_TEMPLATE, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[]}" },
};
enum { N_SEED_BODIES = sizeof seed_bodies / sizeof *seed_bodies };

#endif
