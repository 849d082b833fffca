// The workers, P above D, workers of both roles in both: how full they are, their KV blocks by state, what is wrong with them.

import { bar, button, byId, make, reconcile, setBar, setClass, setText } from "./dom.js";
import { count, short } from "./format.js";
import { drainOrResume } from "./orders.js";
import { jump } from "./jump.js";

export const BLOCKS = ["leased", "pinned", "cached", "free"];
//: How many blocks a worker has in each of these states; null: it has told of none.
export function blocksOf(worker) {
  const numbers = BLOCKS.map((name) => worker[`${name}_blocks`]);
  return numbers.some(Boolean) ? numbers : null;
}
const sum = (numbers) => numbers.reduce((all, number) => all + number, 0);
//: Draws the blocks in a bar, with what the bar is called.
export function setBlocks(bar, numbers, more = "") {
  setBar(bar, numbers, sum(numbers), BLOCKS.map((name, i) => `${count(numbers[i])} ${name}`).join(", ") + more);
}
//: With more of them each takes one line.
const MANY = 10;
let newest = [];

export function showWorkers(workers) {
  newest = workers;
  byId("pools").classList.toggle("many", workers.length > MANY);
  for (const role of ["prefill", "decode"]) {
    const some = workers.filter((worker) => worker.role === role || worker.role === "both");
    reconcile(byId(`${role}-workers`), some, build, update);
    byId(`no-${role}`).hidden = some.length > 0;
    setText(byId(`num-${role}`), some.length ? count(some.length) : "");
  }
}

function build(worker) {
  const node = make("article", "worker");
  const open = button("id", short(worker.id), () => jump("worker", worker.id));
  open.title = worker.id;
  open.setAttribute("aria-label", `Details of worker ${worker.id}`);
  const drain = button("drain", "", () => drainOrResume(drain, node.worker, newest));
  const head = make("header");
  const title = make("h4");
  title.append(open);
  head.append(title, make("span", "chip"), make("span", "about"), drain);
  const room = make("div", "measure");
  room.append(make("span", "", "requests"), bar(["room"]), make("span"));
  const blocks = make("div", "measure");
  blocks.append(make("span", "", "blocks"), bar(BLOCKS), make("span"));
  node.append(head, room, blocks);
  node.addEventListener("click", () => jump("worker", worker.id));
  return node;
}

// In words, and whether that is a problem.
export function stateOf(worker) {
  if (!worker.healthy) return ["cannot be reached", "bad"];
  if (worker.draining) return ["draining", "told"];
  if (worker.breaker !== "closed") return [worker.breaker === "open" ? "left out" : "tried again", "warn"];
  return worker.handshakes.failed ? ["cannot read from all", "warn"] : ["up", ""];
}

function update(node, worker) {
  node.worker = worker;
  const [head, room, blocks] = node.children;
  const [, chip, about, drain] = head.children;
  const [state, level] = stateOf(worker);
  setText(chip, state);
  setClass(chip, `chip ${level}`);
  const ranks = worker.tp === 1 ? "" : `${worker.tp} ranks, `;
  const parts = worker.role === "both" ? "does both, " : "";
  setText(about, `${parts}${ranks}${worker.models?.join(", ") ?? "any model"}`);
  setBar(room.children[1], [worker.occupied], worker.limit, `${worker.occupied} of ${worker.limit} places taken`);
  setText(room.lastChild, `${worker.occupied}/${worker.limit}`);
  showBlocks(blocks, worker);
  setText(drain, worker.draining ? "Resume" : "Drain");
  drain.ariaLabel = `${drain.textContent} worker ${worker.id}`;
}

function showBlocks(node, worker) {
  const numbers = blocksOf(worker);
  if (!numbers) {
    setText(node.lastChild, "not told");
    return;
  }
  const { leased_blocks: leased, free_blocks: free, cached_blocks: cached } = worker;
  setBlocks(node.children[1], numbers, `; ${count(worker.leases)} leases`);
  setText(node.lastChild, leased ? `${count(leased)} leased` : `${count(free + cached)} unused`);
}
