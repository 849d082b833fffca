// Which requests do not get on: a stream of which no token comes, or blocks whose read does not end.

import { STUCK_MS } from "./health.js";

//: Of each listed stream: how many tokens it had, and since when, by the router's clock, seconds.
const seen = new Map();

export function withStuck(snapshot) {
  const requests = snapshot.requests.map((request) => ({ ...request, stuck_ms: stuckMs(request, snapshot.time) }));
  const listed = new Set(requests.map(({ id }) => id));
  for (const id of seen.keys()) if (!listed.has(id)) seen.delete(id);
  return { ...snapshot, requests };
}

function stuckMs({ id, state, stream, num_tokens: tokens, in_state_ms: inStateMs }, nowS) {
  if (!stream) return 0;
  if (state === "reading") return inStateMs > STUCK_MS ? inStateMs : 0;
  if (state !== "decoding") return 0;
  const before = seen.get(id);
  if (before?.tokens !== tokens) seen.set(id, { tokens, sinceS: nowS });
  const stillMs = 1000 * (nowS - seen.get(id).sinceS);
  return stillMs > STUCK_MS ? stillMs : 0;
}
