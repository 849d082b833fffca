// The live requests, oldest first, one row each: where the time went, which workers have it, what is left of its lease.

import { bar, button, byId, make, reconcile, setBar, setClass, setText } from "./dom.js";
import { count, duration, short, STATES } from "./format.js";
import { isLow } from "./health.js";
import { jump } from "./jump.js";
import { abort } from "./orders.js";
import { shorter } from "./shorter.js";

const NUM_SHOWN = 12;
const look = shorter("requests", "more-requests", NUM_SHOWN);

export function showRequests(snapshot) {
  const { requests, num_hidden: hidden, lease_duration_ms: leaseMs, routers, workers } = snapshot;
  byId("list").classList.toggle("several", routers.length > 1);
  byId("list").classList.toggle("some", requests.length > 0);
  const models = new Set(workers.flatMap((worker) => worker.models ?? [])).size;
  const about = ({ model, user }) => [models === 1 && user ? "" : model, user].filter(Boolean).join(", ");
  reconcile(byId("requests"), requests, build, (row, request) => update(row, request, leaseMs, about(request)));
  look(requests);
  byId("no-requests").hidden = requests.length > 0;
  if (!requests.length) setText(byId("example"), example(workers));
  setText(byId("hidden-count"), hidden ? `the oldest and the newest; ${count(hidden)} more in between` : "");
}

// One word of a shell, whatever is in it: a model's name may have any characters.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// What to type for a first request.
function example(workers) {
  const model = workers.find((worker) => worker.models?.length)?.models[0] ?? "MODEL";
  const url = new URL("v1/chat/completions", location.href);
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }] });
  return `curl ${url} -H 'content-type: application/json' -d ${quoted(body)}`;
}

export function cells(row, ...kinds) {
  return kinds.map(([className, ...content]) => {
    const node = make("td", className);
    node.setAttribute("role", "cell");
    node.append(...content);
    row.append(node);
    return node;
  });
}

export function idButton(id, kind) {
  const open = button("id", short(id), () => jump(kind, id));
  open.title = id;
  open.setAttribute("aria-label", `Details of request ${id}`);
  return open;
}

export function newRow(id) {
  const row = make("tr");
  row.setAttribute("role", "row");
  row.addEventListener("click", () => jump("request", id));
  return row;
}

function build(request) {
  const row = newRow(request.id);
  const stop = button("abort", "Abort", () => abort(stop, request));
  stop.ariaLabel = `Abort request ${request.id}`;
  cells(row,
    ["request", idButton(request.id, "request")],
    ["state-cell", make("span", "state"), make("span", "note")],
    ["age number"],
    ["phases", bar(STATES)],
    ["way", make("span"), " → ", make("span")],
    ["lease", bar(["lease"]), make("span")],
    ["tokens number", make("b"), make("span")],
    ["router", short(request.router)],
    ["text"],
    ["order", stop]);
  return row;
}

function update(row, request, leaseMs, about) {
  const [, state, age, phases, way, lease, tokens, , text] = row.children;
  setClass(row, request.state);
  setText(state.firstChild, request.state);
  setText(state.lastChild, request.stuck_ms ? `no news for ${duration(request.stuck_ms)}` : "");
  setText(age, duration(request.age_ms));
  const spent = { ...request.phases_ms, [request.state]: (request.phases_ms[request.state] ?? 0) + request.in_state_ms };
  const label = Object.entries(spent).map(([name, ms]) => `${name} ${duration(ms)}`).join(", ");
  setBar(phases.firstChild, STATES.map((name) => spent[name] ?? 0), request.age_ms, label);
  showWay(way, request);
  const left = request.lease_remaining_ms;
  lease.classList.toggle("none", left === null);
  lease.classList.toggle("low", isLow(request, leaseMs));
  setBar(lease.firstChild, [left ?? 0], leaseMs, left === null ? "no lease" : `${duration(left)} of the lease left`);
  setText(lease.lastChild, left === null ? "" : duration(left));
  setText(tokens.firstChild, request.num_tokens ? count(request.num_tokens) : "");
  setText(tokens.lastChild, request.num_tokens ? ` token${request.num_tokens === 1 ? "" : "s"}` : "");
  setText(text, about);
}

// The worker that computed the prompt, and the one that goes on: P → D.
export function showWay(node, { prefill_worker: p, decode_worker: d }) {
  node.hidden = p === null && d === null;
  [p, d].forEach((id, i) => {
    setText(node.children[i], id === null ? "–" : short(id));
    node.children[i].title = id ?? "";
  });
}
