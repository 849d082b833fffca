// The way of requests from queued to decoding: one lane a state, one dot a listed request. A dot whose request has gone
// on moves to its new lane; requests that are not listed are only counted.

import { byId, make, reconcile, setText } from "./dom.js";
import { count, duration, short, STATES } from "./format.js";

const MOVE_MS = 400;
const SAYS = {
  queued: "wait for room on a P",
  prefilling: "P computes the prompt",
  held: "blocks leased, wait for a D",
  reading: "D reads the blocks",
  decoding: "D sends tokens",
};
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dots = new Map();

function buildLane({ id }) {
  const node = make("li", id);
  const head = make("div", "head");
  head.append(make("strong"), make("span", "name", id), make("span", "oldest"));
  const field = make("div", "dots");
  field.setAttribute("aria-hidden", "true");
  node.append(head, make("p", "", SAYS[id]), field);
  return node;
}

export function showFlow({ counts, queues, requests }) {
  const waiting = { queued: queues.prefill, held: queues.held };
  const lanes = STATES.map((id) => ({ id, value: counts[id] ?? 0, queue: waiting[id] }));
  reconcile(byId("flow"), lanes, buildLane, (node, { value, queue }) => {
    const [head] = node.children;
    setText(head.children[0], count(value));
    setText(head.children[2], queue?.length ? `oldest ${duration(queue.oldest_ms)}` : "");
    node.classList.toggle("some", value > 0);
  });
  moveDots(requests);
}

function moveDots(requests) {
  const fields = new Map([...byId("flow").children].map((lane) => [lane.dataset.key, lane.lastChild]));
  const before = new Map();
  const moving = [];
  const gone = new Set(dots.keys());
  // All places are read before anything moves, so that the layout is computed twice a snapshot and not twice a dot.
  for (const { id, state } of requests) {
    gone.delete(id);
    const dot = dots.get(id);
    if (dot && dot.parentNode !== fields.get(state)) before.set(id, dot.getBoundingClientRect());
  }
  for (const id of gone) {
    dots.get(id).remove();
    dots.delete(id);
  }
  for (const { id, state } of requests) {
    const dot = dots.get(id) ?? make("i");
    if (dot.parentNode === fields.get(state)) continue;
    dot.title = short(id);
    dots.set(id, dot);
    fields.get(state)?.append(dot);
    if (before.has(id)) moving.push([dot, before.get(id)]);
  }
  if (still.matches) return;
  const places = moving.map(([dot]) => dot.getBoundingClientRect());
  moving.forEach(([dot, from], i) => {
    const to = places[i];
    const start = `translate(${from.left - to.left}px, ${from.top - to.top}px)`;
    dot.animate([{ transform: start }, { transform: "none" }], { duration: MOVE_MS, easing: "ease-in-out" });
  });
}
