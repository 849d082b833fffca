// The history as plots: lines, or areas on top of each other. The pointer reads the values of one moment in all of them.

import { endOf, timesOf, widthOf } from "./axis.js";
import { byId, make, reconcile, setText } from "./dom.js";
import { clock, count, duration, rate, STATES } from "./format.js";

const HEIGHT = 100;
//: The step under the pointer, counted from the newest; null: the newest that was measured.
let pointed = null;
let newest = null;
//: Steps that the plots show.
let width = widthOf(0);

const quantiles = (id, title, help, { p50_ms, p95_ms }) => ({
  id, title, help, unit: duration, least: 1, lines: [["p50", p50_ms], ["p95", p95_ms]],
});

function plotsOf(history) {
  const stack = (columns, pick) => STATES.filter((name) => columns[name]).map((name) => [name, pick(columns[name])]);
  return [
    { id: "live", title: "Live requests", unit: count, least: 2, stacked: true, lines: stack(history.live, (values) => values) },
    { id: "phases", title: "Before decoding, mean", unit: duration, least: 1, stacked: true,
      lines: stack(history.phases, ({ mean_ms }) => mean_ms) },
    quantiles("ttft", "TTFT", "from a request to its first token", history.ttft),
    quantiles("itl", "ITL", "from one token to the next", history.itl),
    { id: "tokens", title: "Tokens/s", unit: rate, least: 1, stacked: true, lines: [["tokens", history.tokens_per_s]] },
    { id: "ends", title: "Requests ended/s", unit: rate, least: 1,
      lines: [["ended", history.requests_per_s], ["refused", history.refused_per_s], ["failed", history.failed_per_s]] },
  ];
}

export function showPlots({ history, time }) {
  newest = { history, time };
  const numSteps = history.requests_per_s.length;
  width = widthOf(numSteps);
  const agoS = pointed * history.step_s;
  setText(byId("when"), pointed === null || pointed >= numSteps ? "" : `${clock(time - agoS)}, ${duration(agoS * 1000)} ago`);
  const times = timesOf(width, history.step_s);
  reconcile(byId("plots"), plotsOf(history), build, (node, plot) => update(node, plot, times));
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const setAttribute = (node, name, value) => {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
};

function build({ id, title, help, lines, stacked }) {
  const node = make("figure", `card ${id}`);
  const caption = make("figcaption");
  caption.append(make("strong", "", title));
  if (help) node.title = help;
  for (const [name] of lines) {
    const value = make("span", `value ${name}`);
    // States have their names and colours right above the plots.
    value.append(...(lines.length > 1 ? [make("i"), make("span", stacked ? "unseen" : "", `${name} `)] : []), make("b"));
    value.title = name;
    caption.append(value);
  }
  const picture = svg("svg", { preserveAspectRatio: "none", role: "img" });
  for (const y of [0, 50, 100]) picture.append(svg("line", { class: "grid", x1: 0, x2: "100%", y1: y, y2: y }));
  picture.append(svg("line", { class: "grid", x1: "50%", x2: "50%", y1: 0, y2: HEIGHT }));
  for (const [name] of lines) picture.append(svg("path", { class: `${stacked ? "area" : "curve"} ${name}` }));
  picture.append(svg("line", { class: "pointer", x1: 0, x2: 0, y1: 0, y2: HEIGHT }));
  const values = make("div", "axis values");
  values.append(make("span"), make("span"), make("span", "", "0"));
  const times = make("div", "axis times");
  times.append(make("span"), make("span"), make("span"));
  for (const axis of [values, times]) axis.setAttribute("aria-hidden", "true"); // the picture's label says it
  const frame = make("div", "frame");
  frame.append(values, picture, make("span", "nothing", "nothing measured yet"), times);
  picture.addEventListener("pointermove", (event) => point(event, picture));
  picture.addEventListener("pointerleave", () => point(null, picture));
  node.append(caption, frame);
  return node;
}

function point(event, picture) {
  const box = picture.getBoundingClientRect();
  const at = (event) => Math.floor((width * (event.clientX - box.left)) / box.width);
  pointed = event === null ? null : Math.max(0, width - 1 - at(event));
  if (newest) showPlots(newest);
}

function update(node, { title, unit, least, lines, stacked }, times) {
  const [caption, frame] = node.children;
  const [valueAxis, picture, nothing, timeAxis] = frame.children;
  const tops = stacked ? sums(lines) : lines.flatMap(([, values]) => values);
  const top = endOf(Math.max(0, ...tops.filter((value) => value !== null)), least);
  const said = lines.map(([name, values], i) => {
    const value = pointed === null ? values.slice(-5).findLast((one) => one !== null) : values.at(-1 - pointed);
    setText(caption.children[1 + i].lastChild, unit(value ?? null));
    return `${name} ${unit(value ?? null)}`;
  });
  setAttribute(picture, "viewBox", `0 0 ${width} ${HEIGHT}`);
  setAttribute(picture, "aria-label", `${title}, ${times[0].slice(1)} until now: ${said.join(", ")}; the scale ends at ${unit(top)}`);
  [top, top / 2].forEach((value, i) => setText(valueAxis.children[i], unit(value).replace(/\.0\b/, "")));
  times.forEach((text, i) => setText(timeAxis.children[i], text));
  nothing.hidden = tops.some((value) => value !== null);
  const y = (value) => (HEIGHT - (HEIGHT * value) / top).toFixed(1);
  let below = null;
  lines.forEach(([, values], i) => {
    const path = picture.children[4 + i];
    if (!stacked) {
      setAttribute(path, "d", curve(values, y));
      return;
    }
    const above = values.map((value, j) => (value ?? 0) + (below?.[j] ?? 0));
    setAttribute(path, "d", area(above, below ?? values.map(() => 0), y));
    below = above;
  });
  const x = width - 0.5 - (pointed ?? 0);
  setAttribute(picture.lastChild, "x1", x);
  setAttribute(picture.lastChild, "x2", x);
  setAttribute(picture.lastChild, "visibility", pointed === null ? "hidden" : "visible");
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
