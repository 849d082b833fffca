// The history as plots: lines, or areas on top of each other. The pointer reads the values of one moment in all of them.

import { byId, duration, count, make, rate, reconcile, setText, STATES } from "./dom.js";

const HEIGHT = 100;
//: A plot is at least so many steps wide, however young the router is.
const MIN_STEPS = 30;
//: The step under the pointer, counted from the newest; null: the newest that was measured.
let pointed = null;
let newest = null;
//: Steps that the plots show.
let width = MIN_STEPS;

const quantiles = (id, title, { p50_ms, p95_ms }) => ({
  id, title, unit: duration, lines: [["p50", p50_ms], ["p95", p95_ms]],
});

function plotsOf(history) {
  const stack = (columns, pick) => STATES.filter((name) => columns[name]).map((name) => [name, pick(columns[name])]);
  return [
    { id: "live", title: "Live requests by state", unit: count, stacked: true,
      lines: stack(history.live, (values) => values) },
    { id: "phases", title: "Until decoding by phase, mean", unit: duration, stacked: true,
      lines: stack(history.phases, ({ mean_ms }) => mean_ms) },
    quantiles("ttft", "TTFT", history.ttft),
    quantiles("itl", "Time between tokens (ITL)", history.itl),
    { id: "tokens", title: "Tokens/s", unit: rate, stacked: true, lines: [["tokens", history.tokens_per_s]] },
    { id: "ended", title: "Requests/s", unit: rate,
      lines: [["ended", history.requests_per_s], ["failed", history.failed_per_s]] },
  ];
}

export function showPlots(history) {
  newest = history;
  const numSteps = history.requests_per_s.length;
  width = Math.max(MIN_STEPS, numSteps);
  const minutes = Math.round((width * history.step_s) / 60);
  setText(byId("span"), minutes === 1 ? "Last minute" : `Last ${minutes} minutes`);
  setText(byId("when"), pointed === null || pointed >= numSteps
    ? "" : `${duration(pointed * history.step_s * 1000)} ago`);
  reconcile(byId("plots"), plotsOf(history), build, update);
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function build({ id, title, lines, stacked }) {
  const node = make("figure", `card ${id}`);
  const caption = make("figcaption");
  caption.append(make("strong", "", title));
  for (const [name] of lines) {
    const value = make("span", `value ${name}`);
    value.append(...(lines.length > 1 ? [make("i"), `${name} `] : []), make("b"));
    caption.append(value);
  }
  const picture = svg("svg", { preserveAspectRatio: "none", role: "img" });
  for (const y of [0, 50]) picture.append(svg("line", { class: "grid", x1: 0, x2: "100%", y1: y + 3, y2: y + 3 }));
  for (const [name] of lines) picture.append(svg("path", { class: `${stacked ? "area" : "curve"} ${name}` }));
  picture.append(svg("line", { class: "pointer", x1: -1, x2: -1, y1: 0, y2: HEIGHT }));
  const frame = make("div", "frame");
  frame.append(picture, make("span", "top"), make("span", "nothing", "nothing measured yet"));
  frame.addEventListener("pointermove", (event) => point(event, picture));
  frame.addEventListener("pointerleave", () => point(null, picture));
  node.append(caption, frame);
  return node;
}

function point(event, picture) {
  const box = picture.getBoundingClientRect();
  const at = (event) => Math.floor((width * (event.clientX - box.left)) / box.width);
  pointed = event === null ? null : Math.max(0, width - 1 - at(event));
  if (newest) showPlots(newest);
}

function update(node, { title, unit, lines, stacked }) {
  const [caption, frame] = node.children;
  const [picture, topLabel, nothing] = frame.children;
  const tops = stacked ? sums(lines) : lines.flatMap(([, values]) => values);
  const top = Math.max(0, ...tops.filter((value) => value !== null));
  const said = lines.map(([name, values], i) => {
    const value = pointed === null ? values.slice(-5).findLast((one) => one !== null) : values.at(-1 - pointed);
    setText(caption.children[1 + i].lastChild, unit(value ?? null));
    return `${name} ${unit(value ?? null)}`;
  });
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.setAttribute("aria-label", `${title}: ${said.join(", ")}; highest ${unit(top)}`);
  setText(topLabel, top > 0 ? unit(top) : "");
  nothing.hidden = tops.some((value) => value !== null);
  const y = (value) => (HEIGHT - 1 - (top > 0 ? ((HEIGHT - 4) * value) / top : 0)).toFixed(1);
  let below = null;
  lines.forEach(([, values], i) => {
    const path = picture.children[2 + i];
    if (!stacked) {
      path.setAttribute("d", curve(values, y));
      return;
    }
    const above = values.map((value, j) => (value ?? 0) + (below?.[j] ?? 0));
    path.setAttribute("d", area(above, below ?? values.map(() => 0), y));
    below = above;
  });
  const pointer = picture.lastChild;
  const x = pointed === null ? -1 : width - 0.5 - pointed;
  pointer.setAttribute("x1", x);
  pointer.setAttribute("x2", x);
}

function sums(lines) {
  return lines[0][1].map((_, i) => {
    const known = lines.map(([, values]) => values[i]).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
  });
}

// Where nothing was measured the line has a gap; a lone value is drawn as a short line.
function curve(values, y) {
  let path = "";
  values.forEach((value, i) => {
    if (value === null) return;
    const x = width - values.length + i;
    const begins = i === 0 || values[i - 1] === null;
    path += `${begins ? "M" : "L"}${x},${y(value)}L${x + 1},${y(value)}`;
  });
  return path;
}

function area(above, below, y) {
  if (!above.length) return "";
  const begin = width - above.length;
  const there = above.map((value, i) => `L${begin + i},${y(value)}L${begin + i + 1},${y(value)}`);
  const back = below.map((value, i) => `L${begin + i + 1},${y(value)}L${begin + i},${y(value)}`).reverse();
  return `M${begin},${y(below[0])}${there.join("")}${back.join("")}Z`;
}
