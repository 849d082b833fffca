// All that is known of one request or worker, kept up to date while it is open. A live request that ends meanwhile goes
// on as an ended one, with its outcome.

import { bar, button, byId, make, reconcile, setClass, setText, setWidth, showFacts } from "./dom.js";
import { whyOf } from "./ended.js";
import { clock, count, duration, many, short, STATES } from "./format.js";
import { isLow } from "./health.js";
import { canShow } from "./jump.js";
import { abort, drainOrResume } from "./orders.js";
import { BLOCKS, blocksOf, setBlocks, stateOf } from "./workers.js";

const sheet = byId("details");
//: ["request" or "worker", id] while it is open.
let open = null;
let newest = null;

function show(kind, id) {
  open = [kind, id];
  for (const name of ["details-facts", "details-timeline"]) byId(name).replaceChildren();
  showDetails(newest);
  sheet.showModal();
  byId("details-close").focus();
}

export function showDetails(snapshot) {
  newest = snapshot;
  if (open === null) return;
  const [kind, id] = open;
  setText(byId("details-title"), `${kind === "request" ? "Request" : "Worker"} ${short(id)}`);
  setText(byId("details-id"), id);
  if (kind === "worker") showWorker(snapshot.workers.find((worker) => worker.id === id), snapshot);
  else showRequest(id, snapshot);
}

function showRequest(id, snapshot) {
  const live = snapshot.requests.find((request) => request.id === id);
  const ended = live ? undefined : snapshot.ended.find((request) => request.id === id);
  byId("details-blocks").hidden = true;
  if (live) showLive(live, snapshot);
  else if (ended) showOver(ended);
  else gone("It is over, and newer ones have taken its place in the list.");
}

function gone(text) {
  setState("", "");
  setText(byId("details-error"), text);
  byId("details-error").hidden = false;
  byId("details-order").hidden = true;
}

function setState(text, className) {
  setText(byId("details-state"), text);
  setClass(byId("details-state"), `state ${className}`);
}

function setError(text) {
  byId("details-error").hidden = !text;
  setText(byId("details-error"), text);
}

function showLive(request, { lease_duration_ms: leaseMs }) {
  setState(request.state, request.state);
  setError(request.stuck_ms ? `Nothing has come for ${duration(request.stuck_ms)}: its worker may hang.` : "");
  const spent = { ...request.phases_ms, [request.state]: (request.phases_ms[request.state] ?? 0) + request.in_state_ms };
  timeline(spent, request.age_ms, request.state);
  const left = request.lease_remaining_ms;
  showFacts(byId("details-facts"), [
    ["Age", duration(request.age_ms)],
    ["Lease", left === null ? null
      : `${count(left)} ms left of ${count(leaseMs)} ms${isLow(request, leaseMs) ? ": it is not being renewed" : ""}`],
    ["Tokens so far", request.stream ? count(request.num_tokens) : "counted when it ends: not streamed"],
    ...common(request),
    ["Last error", request.last_error],
    ["Lease id", request.lease_id, true],
    ["Priority", request.priority || null],
  ]);
  orderOf("Abort", `Abort request ${request.id}`, (node) => abort(node, request));
}

function showOver(request) {
  setState(request.outcome, request.outcome);
  const [code, why] = whyOf(request);
  setError(request.outcome === "done" ? "" : `${request.status ?? ""} ${code}: ${why}`.trim());
  timeline(request.phases_ms, request.total_ms, null);
  showFacts(byId("details-facts"), [
    ["Ended", `${clock(request.ended_at)}${request.ended_in ? `, while ${request.ended_in}` : ""}`],
    ["Took", duration(request.total_ms)],
    ["First token after", request.ttft_ms === null ? null : duration(request.ttft_ms)],
    ["Tokens", request.num_tokens === null ? null : count(request.num_tokens)],
    ...common(request),
    ["Trace", request.trace_id, true],
  ]);
  byId("details-order").hidden = true;
}

const common = (request) => [
  ["Prefill worker", request.prefill_worker, true],
  ["Decode worker", request.decode_worker, true],
  ["Attempts", attempts(request)],
  ["Client's id", request.client_id, true],
  ["Model", request.model],
  ["User", request.user],
  ["Asked for", `${request.endpoint}${request.stream ? ", streamed" : ""}`],
  ["Router", request.router, true],
];

function attempts({ num_retries: retries, num_resumed: resumed, dead_engines: dead }) {
  const said = [
    retries && `${count(retries)} tried again`,
    resumed && `gone on elsewhere ${resumed === 1 ? "once" : `${resumed} times`}`,
    dead.length && `${dead.map(short).join(", ")} died with it`,
  ].filter(Boolean);
  return said.length ? said.join("; ") : "the first one";
}

// The states one below the other, each where it lies in the whole time. What was repeated is summed.
function timeline(spent, totalMs, current) {
  let before = 0;
  const rows = STATES.filter((id) => spent[id] !== undefined).map((id) => {
    const row = { id, ms: spent[id], from: before };
    before += spent[id];
    return row;
  });
  const build = ({ id }) => {
    const node = make("li", id);
    const lane = make("div", "lane");
    lane.append(make("span", "before"), make("i"));
    node.append(make("span", "state", id), lane, make("span", "number"));
    return node;
  };
  reconcile(byId("details-timeline"), rows, build, (node, { id, ms, from }) => {
    const [pad, part] = node.children[1].children;
    setWidth(pad, totalMs ? from / totalMs : 0);
    setWidth(part, totalMs ? ms / totalMs : 0);
    setText(node.lastChild, duration(ms));
    node.classList.toggle("now", id === current);
  });
}

function showWorker(worker, { workers }) {
  byId("details-timeline").replaceChildren();
  const blocks = worker && blocksOf(worker);
  byId("details-blocks").hidden = !blocks;
  if (!worker) {
    byId("details-facts").replaceChildren();
    gone("It is known no more: it has ended, or was removed.");
    return;
  }
  const [state, level] = stateOf(worker);
  setState(state, level);
  const failed = Object.entries(worker.handshakes.errors).map(([engine, why]) => `${short(engine)}: ${why}`);
  setError(failed.length ? `It cannot read from ${failed.join("; ")}` : "");
  if (blocks) showBlocks(blocks);
  showFacts(byId("details-facts"), [
    ["Role", worker.role === "both" ? "prefill and decode" : worker.role],
    ["Model", worker.models?.join(", ") ?? "not told: any is tried"],
    ["Places taken", `${count(worker.occupied)} of ${count(worker.limit)}`],
    ["In flight", `${many(worker.in_flight, "request")} of this router`],
    ["Inside it", `${count(worker.running)} running, ${count(worker.waiting)} waiting, ${count(worker.reading)} reading`],
    ["Leases", count(worker.leases)],
    ["Health", worker.healthy ? "answers" : "cannot be reached; it is tried again by itself"],
    ["Breaker", breakerOf(worker)],
    ["Reads from", handshakesOf(worker.handshakes)],
    ["Name", worker.name || null],
    ["Address", worker.url, true],
    ["Ranks", count(worker.tp)],
    ["Block size", worker.block_size ? many(worker.block_size, "token") : null],
    ["Compatibility hash", worker.compatibility_hash, true],
    ["Weights", worker.weights_fingerprint, true],
    ["Engine", worker.engine_id === worker.id ? null : worker.engine_id, true],
  ]);
  orderOf(worker.draining ? "Resume" : "Drain", null, (node) => drainOrResume(node, worker, workers));
}

function breakerOf({ breaker, breaker_failures: failures }) {
  if (breaker === "closed") return failures ? `closed; ${many(failures, "request")} in a row failed` : "closed";
  const then = breaker === "open" ? "open: others are preferred" : "half open: one request is tried at a time";
  return `${then}; ${many(failures, "request")} in a row failed`;
}

function handshakesOf({ connected, connecting, failed }) {
  if (!(connected + connecting + failed)) return null;
  return `${many(connected, "engine")}${connecting ? `, ${count(connecting)} being met` : ""}${failed ? `, ${count(failed)} failed` : ""}`;
}

function showBlocks(numbers) {
  const node = byId("details-blocks");
  if (!node.children.length) node.append(bar(BLOCKS), make("ul"));
  setBlocks(node.firstChild, numbers);
  const build = ({ id }) => {
    const item = make("li");
    item.append(make("i", id), make("span"));
    return item;
  };
  const rows = BLOCKS.map((id, i) => ({ id, number: numbers[i] }));
  reconcile(node.lastChild, rows, build, (item, { id, number }) => setText(item.lastChild, `${count(number)} ${id}`));
}

let give = null;
const orderButton = button("", "", () => give(orderButton));
byId("details-order").append(orderButton);

function orderOf(text, label, onClick) {
  give = onClick;
  byId("details-order").hidden = false;
  setText(orderButton, text);
  setClass(orderButton, text.toLowerCase());
  if (label) orderButton.setAttribute("aria-label", label);
  else orderButton.removeAttribute("aria-label");
}

canShow("request", (id) => show("request", id));
canShow("worker", (id) => show("worker", id));
byId("details-close").addEventListener("click", () => sheet.close());
sheet.addEventListener("close", () => {
  if (!sheet.open) open = null;
});
sheet.addEventListener("click", (event) => {
  if (event.target === sheet) sheet.close();
});
