/* What is asked of the engine. */
#ifndef REQUESTS_H
#define REQUESTS_H

#include "connection.h"

void take_requests(Connection *connection);

#endif
