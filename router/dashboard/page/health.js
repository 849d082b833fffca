// Is it healthy, and if not, what is to be done? One line, and one problem a line below it. ``problemsOf`` is pure.

import { byId, button, make, reconcile, setClass, setText } from "./dom.js";
import { clock, count, duration, many, rate, short } from "./format.js";
import { shorter } from "./shorter.js";
import { takesWork } from "./orders.js";
import { jump } from "./jump.js";

//: A queue in which a request has waited for so long is a problem, milliseconds.
const LONG_WAIT_MS = 10000;
//: Requests of which no token has come for so long, or whose blocks are read for so long, are stuck, milliseconds.
export const STUCK_MS = 10000;
//: A lease with less than this share of its time left is not being renewed.
export const LOW_LEASE = 0.4;
//: So many wrong keys are no typing errors.
const MANY_WRONG_KEYS = 20;
//: Statuses of requests that were refused before they began: what each says, and what to do.
const REFUSALS = {
  401: ["a wrong key", "A client may still use a key that was replaced, or somebody guesses: see BATON_API_KEYS and the admin token."],
  429: ["too much at once", "Add workers, or let more wait: max_queue_length and max_requests."],
  503: ["no worker to take it, or the router was stopping", "Look at the workers and their models."],
};
//: Problems named one by one, of one kind.
const MAX_NAMED = 3;

const look = shorter("problems", "more-problems", 5, 2);

const hasRole = (role) => (worker) => worker.role === role || worker.role === "both";
const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const minutesOf = (history) => Math.max(1, Math.round((history.failed_per_s.length * history.step_s) / 60));

// The worst first.
export function problemsOf(snapshot) {
  const found = [
    ...workerProblems(snapshot.workers),
    ...lostProblems(snapshot.lost),
    ...routerProblems(snapshot.routers),
    ...queueProblems(snapshot.queues, snapshot.workers),
    ...requestProblems(snapshot),
    ...failureProblems(snapshot),
  ];
  return [...found.filter(({ level }) => level === "bad"), ...found.filter(({ level }) => level !== "bad")];
}

function workerProblems(workers) {
  if (!workers.length) {
    return [{ id: "none", level: "bad", text: "No worker is known, so nothing can be served.",
      advice: "Start a prefill and a decode worker with the Redis of this router: baton worker --role prefill, baton worker --role decode." }];
  }
  const found = [];
  const decode = workers.filter(hasRole("decode"));
  const prefill = workers.filter(hasRole("prefill"));
  if (!decode.some(takesWork) && !(prefill.some((worker) => worker.role === "both" && takesWork(worker)))) {
    found.push({ id: "no-decode", level: "bad", text: "No decode worker takes requests, so nothing can be served.",
      advice: decode.length ? "Resume one, or see why they cannot be reached." : "Start one: baton worker --role decode." });
  }
  if (!prefill.some(takesWork)) {
    found.push({ id: "no-prefill", level: "bad", text: "No prefill worker takes requests.",
      advice: prefill.length ? "Resume one, or see why they cannot be reached."
        : "Decode workers compute the prompts themselves meanwhile. Start one: baton worker --role prefill." });
  }
  found.push(...named("away", "bad", workers.filter((worker) => !worker.healthy),
    (worker) => `Worker ${called(worker)} (${worker.role}) cannot be reached.`,
    (number) => `${number} more workers cannot be reached.`,
    "It is tried again by itself and gets no requests meanwhile. Look at its log, or start another one."));
  found.push(...named("breaker", "warn", workers.filter((worker) => worker.healthy && worker.breaker !== "closed"),
    (worker) => `Worker ${called(worker)} (${worker.role}) is left out: ${many(worker.breaker_failures, "request")} in a row failed there.`,
    (number) => `${number} more workers are left out.`,
    "Others are preferred until one succeeds there. Its log says why they fail."));
  found.push(...named("peers", "warn", workers.filter((worker) => worker.handshakes.failed > 0),
    (worker) => `Worker ${called(worker)} (${worker.role}) cannot read from ${many(worker.handshakes.failed, "engine")}.`,
    (number) => `${number} more workers cannot read from some engine.`,
    "Its details say why. Requests take other ways meanwhile."));
  return found;
}

const lostProblems = (lost) => named("lost", "warn", lost.toReversed(),
  (worker) => `Worker ${called(worker)} (${worker.role}) is lost since ${clock(worker.gone_at)}: it left without draining, with ${many(worker.in_flight, "request")} and ${many(worker.leased_blocks, "leased block")}.`,
  (number) => `${number} more workers are lost.`,
  "Its log says why. It is listed until it is back, for an hour at most.", ["lost", "Forget it"]);

const called = (worker) => [worker.name, short(worker.id)].filter(Boolean).join(" ");

function named(kind, level, workers, text, more, advice, [to, say] = ["worker", "Details"]) {
  const lines = workers.slice(0, MAX_NAMED).map((worker) => (
    { id: `${kind}-${worker.id}`, level, text: text(worker), advice, go: [to, worker.id], say }));
  if (workers.length > MAX_NAMED) lines.push({ id: `${kind}-more`, level, text: more(workers.length - MAX_NAMED) });
  return lines;
}

function routerProblems(routers) {
  return routers.filter((router) => router.error).map((router) => (
    { id: `router-${router.id}`, level: "warn", text: `Router ${short(router.id)} does not answer: ${router.error}.`,
      advice: "Its requests are missing here. The others serve on." }));
}

function queueProblems(queues, workers) {
  const found = [];
  const look = (queue, role) => {
    if (!(queue.oldest_ms > LONG_WAIT_MS)) return;
    const up = workers.filter((worker) => hasRole(role)(worker) && takesWork(worker)).length;
    found.push({ id: `queue-${role}`, level: "warn",
      text: `${many(queue.length, "request")} ${queue.length === 1 ? "waits" : "wait"} for room on a ${role} worker, the oldest for ${duration(queue.oldest_ms)}.`,
      advice: up ? `All ${role} workers are full: add one (under baton up: baton scale ${role}=${up + 1}), or let fewer requests in.` : "" });
  };
  look(queues.prefill, "prefill");
  look(queues.held, "decode");
  return found;
}

function requestProblems({ requests, lease_duration_ms: leaseMs }) {
  const found = [];
  const low = requests.filter((request) => isLow(request, leaseMs));
  if (low.length) {
    found.push({ id: "low", level: "warn", text: `${many(low.length, "lease")} ${low.length === 1 ? "is" : "are"} running out.`,
      advice: "Renewals do not arrive: look whether Redis answers. What is lost is prefilled again.", go: ["request", low[0].id], say: "Show one" });
  }
  const stuck = requests.filter((request) => request.stuck_ms);
  if (stuck.length) {
    found.push({ id: "stuck", level: "warn", text: `${many(stuck.length, "request")} ${stuck.length === 1 ? "does" : "do"} not get on.`,
      advice: "Its worker may hang. A time limit gives it to another one; an abort ends it now.",
      go: ["request", stuck[0].id], say: "Show the oldest" });
  }
  return found;
}

export const isLow = (request, leaseMs) => request.lease_remaining_ms !== null && request.lease_remaining_ms < leaseMs * LOW_LEASE;

// Whether a status is a client's mistake: any of 4xx but two, which a worker may answer because of its own load.
const isClients = (status) => status >= 400 && status < 500 && status !== 408 && status !== 429;

// Of a column, or of one for each status: how many requests, in all steps or the newest ones.
const numIn = (column, { step_s: stepS }, numSteps = Infinity) => sum(column.slice(-numSteps)) * stepS;
const numBy = (columns, history, isWanted, numSteps) => sum(Object.entries(columns ?? {})
  .map(([status, column]) => (isWanted(Number(status)) ? numIn(column, history, numSteps) : 0)));

const over = (history) => {
  const minutes = minutesOf(history);
  return `in the last ${minutes === 1 ? "minute" : `${minutes} minutes`}`;
};

function failureProblems({ history, ended }) {
  const numFailed = (numSteps) => Math.round(
    numIn(history.failed_per_s, history, numSteps) - numBy(history.failed_by_status, history, isClients, numSteps));
  const failed = numFailed();
  const found = refusalProblems(history);
  if (failed > 0) {
    const newest = ended.find(({ outcome, status }) => outcome === "failed" && !isClients(status));
    const isNow = numFailed(Math.round(60 / history.step_s)) > 0;
    found.unshift({ id: "failed", level: isNow ? "bad" : "warn",
      text: `${many(failed, "request")} failed ${over(history)}${newest ? `, the newest with ${newest.code}` : ""}.`,
      go: ["ended", "failed"], say: "Show why" });
  }
  return found;
}

// Refused before they began, each status on a line of its own: only what an operator can mend.
function refusalProblems(history) {
  return Object.entries(history.refused_by_status ?? {}).flatMap(([status, column]) => {
    const number = Math.round(numIn(column, history));
    const isMine = status === "401" ? number >= MANY_WRONG_KEYS : status === "429" || status >= 500;
    if (!number || !isMine) return [];
    const [what, advice] = REFUSALS[status] ?? ["refused because of an error of the router", "Its log says why."];
    return { id: `refused-${status}`, level: "warn", text: `${count(number)} × ${status}: ${what}, ${over(history)}.`, advice };
  });
}

// What clients did wrong: refused before it began, or by a worker.
const numMistakes = (history) => Math.round(numBy(history.refused_by_status, history, isClients)
  + numBy(history.failed_by_status, history, isClients));

export function showHealth(snapshot) {
  const problems = problemsOf(snapshot);
  const worst = problems.some(({ level }) => level === "bad") ? "bad" : problems.length ? "warn" : "";
  setClass(byId("health"), worst);
  setText(byId("verdict"), { bad: "Something is wrong", warn: "Needs a look", "": "All well" }[worst]);
  setText(byId("summary"), summary(snapshot));
  document.title = worst ? `${worst === "bad" ? "✖" : "▲"} Baton` : "Baton";
  reconcile(byId("problems"), problems, build, update);
  look(problems);
}

function summary({ workers, counts, history }) {
  const up = (role) => workers.filter((worker) => hasRole(role)(worker) && takesWork(worker)).length;
  const live = sum(Object.values(counts));
  const draining = workers.filter((worker) => worker.draining).length;
  const mistakes = numMistakes(history);
  return [
    `${up("prefill")} prefill and ${up("decode")} decode workers up${draining ? `, ${draining} draining` : ""}`,
    `${many(live, "live request")}`,
    `${rate(history.requests_per_s.at(-1))} ended/s`,
    `${rate(history.tokens_per_s.at(-1))} tokens/s`,
    ...(mistakes ? [`${many(mistakes, "client error")} ${over(history)}`] : []),
    `TTFT ${duration(history.ttft.p50_ms.slice(-5).findLast((value) => value !== null))}`,
  ].join(" · ");
}

function build({ go, say }) {
  const node = make("li");
  const text = make("p");
  text.append(make("strong"), " ", make("span"));
  node.append(text);
  if (go) node.append(button("", say, () => jump(...node.go)));
  return node;
}

function update(node, { level, text, advice, go }) {
  node.go = go;
  setClass(node, level);
  setText(node.firstChild.firstChild, text);
  setText(node.firstChild.lastChild, advice ?? "");
}
