/* What the engine answers. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "connection.h"

void prepare_answers(void);
void send_json(Connection *connection, const char *body, size_t num_bytes);
void send_completion(Connection *connection, long num_tokens, bool with_kv);
void send_token(Connection *connection);

#endif
