// The live requests, one row each: where the time went, who works on it, what is left of its lease, and an abort.

import { bar, byId, count, duration, make, reconcile, setBar, setText, short, shortRequest, STATES } from "./dom.js";
import { order } from "./stream.js";

//: A lease with less than this share of its time left is drawn in red: renewals do not come.
const LOW = 0.4;

export function showRequests(snapshot) {
  const { requests, num_hidden: hidden, lease_duration_ms: leaseMs, routers } = snapshot;
  document.querySelector("table").classList.toggle("several", routers.length > 1);
  reconcile(byId("requests"), requests, build, (row, request) => update(row, request, leaseMs));
  byId("no-requests").hidden = requests.length > 0;
  setText(byId("hidden-count"), hidden ? `The oldest and the newest; ${count(hidden)} more in between.` : "");
}

function build(request) {
  const row = make("tr");
  const cell = (className, ...content) => {
    const node = make("td", className);
    node.append(...content);
    row.append(node);
    return node;
  };
  cell("id", shortRequest(request.id)).title = request.id;
  cell("state");
  cell("number");
  cell("phases", bar(STATES));
  cell("way", make("span"), " → ", make("span"));
  cell("lease", bar(["lease"]), make("span"));
  cell("number");
  cell("router", short(request.router)).title = request.router;
  cell("text", request.user ? `${request.model}, ${request.user}` : request.model);
  const button = make("button", "abort", "Abort");
  button.type = "button";
  button.ariaLabel = `Abort request ${request.id}`;
  const path = `admin/requests/${encodeURIComponent(request.id)}/abort`;
  button.addEventListener("click", () => order(button, path, button.ariaLabel));
  cell("", button);
  return row;
}

function update(row, request, leaseMs) {
  const [, state, age, phases, way, lease, tokens] = row.children;
  row.className = request.state;
  setText(state, request.state);
  setText(age, duration(request.age_ms));
  const spent = { ...request.phases_ms, [request.state]: request.in_state_ms };
  const label = Object.entries(spent).map(([name, ms]) => `${name} ${duration(ms)}`).join(", ");
  setBar(phases.firstChild, STATES.map((name) => spent[name] ?? 0), request.age_ms, label);
  [request.prefill_worker, request.decode_worker].forEach((id, i) => {
    setText(way.children[i], id === null ? "–" : short(id));
    way.children[i].title = id ?? "";
  });
  const left = request.lease_remaining_ms;
  lease.classList.toggle("none", left === null);
  lease.classList.toggle("low", left !== null && left < leaseMs * LOW);
  setBar(lease.firstChild, [left ?? 0], leaseMs, left === null ? "no lease" : `${duration(left)} of the lease left`);
  setText(lease.lastChild, left === null ? "" : duration(left));
  setText(tokens, request.num_tokens ? count(request.num_tokens) : "");
}
