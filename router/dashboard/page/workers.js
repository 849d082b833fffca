// The workers, P on one side and D on the other, those that do both on both: room, KV blocks by state, leases, and a button that drains.

import { bar, byId, count, make, reconcile, setBar, setText, short } from "./dom.js";
import { order } from "./stream.js";

const BLOCKS = ["leased", "pinned", "cached", "free"];
const WORDS = { leased: "leased", pinned: "in use", cached: "cached", free: "free" };

export function showWorkers(workers) {
  for (const role of ["prefill", "decode"]) {
    const some = workers.filter((worker) => worker.role === role || worker.role === "both");
    reconcile(byId(`${role}-workers`), some, build, update);
    byId(`no-${role}`).hidden = some.length > 0;
  }
}

function build(worker) {
  const node = make("article", "worker");
  const button = make("button", "drain");
  button.type = "button";
  const path = `admin/workers/${encodeURIComponent(worker.id)}`;
  button.addEventListener("click", () => order(button, `${path}/${button.textContent.toLowerCase()}`, button.ariaLabel));
  const head = make("header");
  head.append(make("h4", "", short(worker.id)), make("span", "chip"), make("span", "about"), button);
  node.title = worker.id;
  const room = make("div", "measure");
  room.append(make("span", "", "requests"), bar(["room"]), make("span"));
  const blocks = make("div", "measure");
  blocks.append(make("span", "", "blocks"), bar(BLOCKS), make("span"));
  node.append(head, room, blocks, make("p", "peers"));
  return node;
}

function stateOf(worker) {
  if (!worker.healthy) return "cannot be reached";
  return worker.draining ? "draining" : "up";
}

function update(node, worker) {
  const [head, room, blocks, peers] = node.children;
  const [, chip, about, button] = head.children;
  const state = stateOf(worker);
  setText(chip, state);
  chip.className = `chip ${worker.healthy ? state : "bad"}`;
  const ranks = worker.tp === 1 ? "" : `${worker.tp} ranks, `;
  const parts = worker.role === "both" ? "does both, " : "";
  setText(about, `${parts}${ranks}${worker.models?.join(", ") ?? "any model"}`);
  setBar(room.children[1], [worker.occupied], worker.limit, `${worker.occupied} of ${worker.limit} places taken`);
  room.classList.toggle("full", worker.occupied >= worker.limit);
  setText(room.lastChild, `${worker.occupied}/${worker.limit}`);
  showBlocks(blocks, worker);
  const { connecting, failed } = worker.handshakes;
  const said = [failed && `${failed} peers failed`, connecting && `${connecting} peers being met`].filter(Boolean);
  setText(peers, said.join(", "));
  peers.hidden = !said.length;
  peers.className = failed ? "peers bad" : "peers";
  setText(button, worker.draining ? "Resume" : "Drain");
  button.ariaLabel = `${button.textContent} worker ${worker.id}`;
}

function showBlocks(node, { blocks, leases }) {
  if (blocks === null) {
    setText(node.lastChild, "not told");
    return;
  }
  const values = BLOCKS.map((name) => blocks[name]);
  const label = BLOCKS.map((name, i) => `${count(values[i])} ${WORDS[name]}`).join(", ");
  setBar(node.children[1], values, blocks.total, `${label}; ${count(leases)} leases`);
  setText(node.lastChild, blocks.leased ? `${count(blocks.leased)} leased` : `${count(blocks.free)} free`);
}
